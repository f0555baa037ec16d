"""llama-server inside Python: the real server of the package xllamacpp behind the flags that the tests use.

Run by the Python that has xllamacpp: ``python xllamacpp_server.py -m FILE -c N -np N [-ub N] [-t N] --port N``. It
prints what llama-server prints.
"""

import argparse
import threading

import xllamacpp


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("-m", dest="model", required=True)
    for flag in ("-c", "-np", "-ub", "-t", "-lv", "--port"):
        parser.add_argument(flag, type=int)
    parser.add_argument("--host")
    parser.add_argument("-nr", action="store_true")
    parser.add_argument("--no-warmup", action="store_true")
    given = parser.parse_args()
    params = xllamacpp.CommonParams()
    params.model.path = given.model
    params.n_ctx, params.n_parallel, params.port = given.c, given.np, given.port
    params.n_ubatch = given.ub or params.n_ubatch
    params.cpuparams.n_threads = given.t or params.cpuparams.n_threads
    params.verbosity, params.warmup, params.no_extra_bufts = given.lv or 3, not given.no_warmup, given.nr
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
