"""Runs llama.cpp's HTTP server from its wheel until a signal ends it; `llamacpp_server.py --help` lists its options.

The environment of llama.cpp runs this file by its path, so it imports nothing of Magnus.
"""

import argparse
import signal

from xllamacpp import CommonParams, Server, ggml_type

KV_TYPES = {"f32": ggml_type.GGML_TYPE_F32, "f16": ggml_type.GGML_TYPE_F16, "bf16": ggml_type.GGML_TYPE_BF16}


def main() -> None:
    """Serve one GGUF file to any number of connections, `slots` of them at once."""
    options = argparse.ArgumentParser()
    options.add_argument("--model", required=True, help="a GGUF file")
    options.add_argument("--alias", required=True, help="the model's name in answers")
    options.add_argument("--port", type=int, required=True)
    options.add_argument("--slots", type=int, required=True, help="rows that are decoded at once")
    options.add_argument("--kv-tokens", type=int, required=True, help="of the KV cache that all slots share")
    options.add_argument("--kv-type", choices=sorted(KV_TYPES), default="f16")
    options.add_argument("--threads", type=int, required=True)
    given = options.parse_args()
    params = CommonParams()
    params.model.path, params.model_alias = given.model, {given.alias}
    params.port, params.ui = given.port, False
    params.n_parallel, params.n_ctx, params.kv_unified = given.slots, given.kv_tokens, True
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = given.threads
    params.cache_type_k = params.cache_type_v = KV_TYPES[given.kv_type]
    params.endpoint_metrics = params.endpoint_slots = True
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGINT])  # before the server starts its threads
    server = Server(params)
    print(f"listening at {server.listening_address}", flush=True)
    signal.sigwait([signal.SIGTERM, signal.SIGINT])


if __name__ == "__main__":
    main()
