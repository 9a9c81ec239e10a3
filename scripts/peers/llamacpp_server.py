"""llama.cpp's own server out of the package xllamacpp, with room for 32 requests over one KV cache.

`scripts/compare_peers` starts it with the interpreter of the environment that has the package.
"""

from __future__ import annotations

import argparse
import signal
import sys

import xllamacpp


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    arguments = parser.parse_args()
    settings = xllamacpp.CommonParams()
    settings.model.path = arguments.model
    settings.hostnames = ["127.0.0.1"]
    settings.port = arguments.port
    settings.n_parallel = 32
    settings.n_ctx = 32768
    settings.kv_unified = True
    settings.cont_batching = True
    settings.cpuparams.n_threads = arguments.threads
    settings.cpuparams_batch.n_threads = arguments.threads
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
    server = xllamacpp.Server(settings)
    print(f"listening at {server.listening_address}", flush=True)
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
