"""llmdoctor: an environment preflight and doctor for LLM serving."""

__version__ = "0.1.0"
