"""llama.cpp's server out of the `xllamacpp` package, called as its own `llama-server` is.

Run by a Python that has `xllamacpp`; it needs nothing of headrace.
"""

import argparse
import os
import signal

import xllamacpp

parser = argparse.ArgumentParser()
parser.add_argument("-m", required=True)
parser.add_argument("-a", required=True)
parser.add_argument("--host", required=True)
parser.add_argument("--port", type=int, required=True)
parser.add_argument("--metrics", action="store_true")
parser.add_argument("-t", type=int, required=True)
parser.add_argument("-c", type=int, default=0)
parser.add_argument("-np", type=int, default=1)
arguments = parser.parse_args()

params = xllamacpp.CommonParams()
params.model.path = arguments.m
params.model_alias = {arguments.a}
params.hostnames = [arguments.host]
params.port = arguments.port
params.endpoint_metrics = arguments.metrics
params.cpuparams.n_threads = arguments.t
params.n_ctx = arguments.c
params.n_parallel = arguments.np
params.api_keys = [os.environ["LLAMA_API_KEY"]]
server = xllamacpp.Server(params)
print(server.listening_address, flush=True)  # noqa: T201 -- into the replica's log
signal.sigwait({signal.SIGTERM, signal.SIGINT})
