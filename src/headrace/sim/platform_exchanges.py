"""What Triton and KServe answer, which serve other engines; see `engine_exchanges`."""

import json

from headrace.adapters.protocol import EngineLoad, ReadinessState
from headrace.base.errors import InvalidRequest
from headrace.sim.engine_wire import (
    EngineExchanges,
    ErrorExchange,
    generated_stream,
    listed,
    noise,
    stream_usage,
    stream_with_running_usage,
    stream_with_usage_at_end,
    too_long,
    usage_after,
    without_cached,
)
from headrace.sim.vllm_answers import vllm_load, vllm_metrics, vllm_too_long

platform_exchanges = (
    EngineExchanges(
        engine="triton",
        ready=(200, b""),
        unready=(
            400,
            b'{"detail":"Attached inference engine is not ready for inference requests."}',
            ReadinessState.LOADING,
        ),
        metrics=f"""{noise}
nv_inference_pending_request_count{{model="a-model",version="1"}} 3
nv_inference_request_success{{model="a-model",version="1"}} 99
""",
        load=EngineLoad(waiting_requests=3),
        errors=(ErrorExchange(400, b'{"detail":"Unknown model: x"}', InvalidRequest),),
        stream=stream_with_usage_at_end(),
        models=listed(owned_by="Triton Inference Server"),
    ),
    EngineExchanges(
        engine="triton_vllm",
        ready=(200, b""),
        unready=(400, b"", ReadinessState.LOADING),
        errors=(
            too_long(
                500,
                json.dumps(
                    {
                        "error": "Error generating stream: The decoder prompt (length 5000) is "
                        "longer than the maximum model length of 4096."
                    }
                ).encode(),
                5000,
                4096,
            ),
            ErrorExchange(
                400,
                b'{"error":"Unable to parse \'data\': attempt to access JSON non-string"}',
                InvalidRequest,
            ),
        ),
        stream=generated_stream(tells_end=True),
        usage=without_cached(stream_usage),
        opening_chunks=0,
        cut_usage=without_cached(usage_after(2)),
        models=listed(),
    ),
    EngineExchanges(
        engine="triton_tensorrt_llm",
        ready=(200, b""),
        unready=(400, b"", ReadinessState.LOADING),
        errors=(
            too_long(
                400,
                json.dumps(
                    {
                        "error": "Encountered an error when fetching new request: Prompt length "
                        "(5000) exceeds maximum input length (4096)."
                    }
                ).encode(),
                5000,
                4096,
            ),
            ErrorExchange(
                400,
                b'{"error":"[request id: <id_unknown>] expected 4 inputs but got 3 inputs for model'
                b" 'ensemble'\"}",
                InvalidRequest,
            ),
        ),
        stream=generated_stream(tells_end=False),
        usage=without_cached(stream_usage),
        opening_chunks=0,
        cut_usage=without_cached(usage_after(2)),
        models=listed(),
    ),
    EngineExchanges(
        engine="kserve",
        ready=(200, b'{"ready":true}'),
        unready=(503, b"<html><body>no healthy upstream</body></html>", ReadinessState.LOADING),
        metrics=vllm_metrics,
        load=vllm_load,
        errors=vllm_too_long[:1],
        stream=stream_with_running_usage(),
        cut_usage=usage_after(2),
        models=listed(max_model_len=4096),
        context_length=4096,
    ),
)
