"""llama.cpp's server from the `xllamacpp` package, as a process to compare with.

Run by a Python that has `xllamacpp` (it needs nothing of headrace):

    python bench/peers/llama_server.py MODEL.gguf --port 18080 --threads 2 --slots 32
"""

import argparse
import signal
import sys

import xllamacpp


def parameters(arguments: argparse.Namespace) -> "xllamacpp.CommonParams":
    """The settings that a careful user of llama-server on a small CPU would choose."""
    params = xllamacpp.CommonParams()
    params.model.path = arguments.model
    params.n_ctx = arguments.context * arguments.slots
    params.n_parallel = arguments.slots
    params.cpuparams.n_threads = arguments.threads
    params.port = arguments.port
    params.hostnames = ["127.0.0.1"]
    params.endpoint_metrics = True
    params.warmup = True
    return params


def main() -> None:
    """Serve until the process is told to stop."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--slots", type=int, default=32)
    parser.add_argument("--context", type=int, default=1024, help="tokens a slot")
    server = xllamacpp.Server(parameters(parser.parse_args()))
    print(server.listening_address, flush=True)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    sys.stdout.flush()


if __name__ == "__main__":
    main()
