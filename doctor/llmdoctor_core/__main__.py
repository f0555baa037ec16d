"""``python -m llmdoctor_core``: the same command where another tool owns the name ``llmdoctor``."""

from llmdoctor_core.cli import main

if __name__ == "__main__":
    main()
