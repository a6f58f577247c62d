"""What engines answer, made from their documents and sources; for the adapters' conformance suite.

Only ours, llama.cpp's (xllamacpp 2026.10.11549) and Transformers' (5.24.0) were also seen on the
wire. Each engine has its own readiness answers, metrics with noise around them, errors, a stream,
and a model list.
"""

import json

from headrace.adapters.protocol import EngineLoad, ReadinessState
from headrace.base.errors import InvalidRequest
from headrace.sim.engine_wire import (
    EngineExchanges,
    ErrorExchange,
    config_of,
    flat,
    listed,
    llama_stream,
    nested,
    noise,
    stream_with_running_usage,
    stream_with_usage_at_end,
    too_long,
    usage_after,
)
from headrace.sim.platform_exchanges import platform_exchanges
from headrace.sim.service_exchanges import service_exchanges
from headrace.sim.vllm_answers import vllm_load, vllm_metrics, vllm_too_long

exchanges = (
    EngineExchanges(
        engine="headrace",
        ready=(200, b'{"state":"ready","progress":1.0,"detail":""}'),
        unready=(503, b'{"state":"loading","progress":0.4}', ReadinessState.LOADING),
        metrics=f"""{noise}
headrace_engine_running_requests 2
headrace_engine_waiting_requests 1
headrace_engine_kv_usage_ratio 0.5
headrace_engine_prompt_tokens_total 70
headrace_engine_completion_tokens_total 30
""",
        load=EngineLoad(2, 1, 0.5, 70, 30),
        errors=(
            too_long(
                400,
                nested(
                    "too long",
                    code="context_length_exceeded",
                    param="messages",
                    prompt_tokens=5000,
                    max_model_len=4096,
                ),
                5000,
                4096,
            ),
        ),
        stream=stream_with_running_usage(),
        cut_usage=usage_after(2),
        models=listed(max_model_len=4096),
        context_length=4096,
    ),
    EngineExchanges(
        engine="llama_cpp",
        ready=(200, b'{"status":"ok"}'),
        unready=(
            503,
            nested("Loading model", type="unavailable_error", code=503),
            ReadinessState.LOADING,
        ),
        metrics=f"""{noise}
llamacpp:prompt_tokens_total 55
llamacpp:prompt_tokens_cached_total 63
llamacpp:prompt_seconds_total 14.8019
llamacpp:tokens_predicted_total 245
llamacpp:requests_processing 1
llamacpp:requests_deferred 2
llamacpp:n_busy_slots_per_decode 1.00813
""",
        load=EngineLoad(1, 2, None, 118, 245, 63),
        errors=(
            too_long(
                400,
                nested(
                    "request (5031 tokens) exceeds the available context size (1024 tokens)",
                    code=400,
                    type="exceed_context_size_error",
                    n_prompt_tokens=5031,
                    n_ctx=1024,
                ),
                5031,
                1024,
            ),
            ErrorExchange(
                400,
                nested("Expected 'messages' to be an array", type="invalid_request_error"),
                InvalidRequest,
            ),
        ),
        stream=llama_stream(),
        cut_usage=usage_after(2),
        models=listed(meta={"n_ctx": 1024, "n_ctx_train": 8192}),
        context_length=1024,
    ),
    EngineExchanges(
        engine="vllm",
        ready=(200, b""),
        unready=(503, b"", ReadinessState.FAILED),
        metrics=vllm_metrics,
        load=vllm_load,
        errors=vllm_too_long,
        stream=stream_with_running_usage(),
        cut_usage=usage_after(2),
        models=listed(max_model_len=4096, root="/models/a"),
        context_length=4096,
    ),
    EngineExchanges(
        engine="sglang",
        ready=(200, b""),
        unready=(503, b"", ReadinessState.LOADING),
        metrics=f"""{noise}
sglang:num_running_reqs{{model_name="a-model",tp_rank="0"}} 7.0
sglang:num_queue_reqs{{model_name="a-model"}} 3.0
sglang:num_grammar_queue_reqs{{model_name="a-model"}} 8.0
sglang:token_usage{{model_name="a-model"}} 0.28
sglang:prompt_tokens_total{{model_name="a-model"}} 8128.0
sglang:generation_tokens_total{{model_name="a-model"}} 755.0
sglang:cached_tokens_total{{cache_source="device"}} 60.0
sglang:cached_tokens_total{{cache_source="host"}} 40.0
sglang:num_retracted_requests_total 2.0
""",
        load=EngineLoad(7, 3, 0.28, 8128, 755, 100, 2),
        errors=(
            too_long(
                400,
                flat(
                    "The input (5000 tokens) is longer than the model's context length "
                    "(4096 tokens).",
                    type="BadRequestError",
                    param=None,
                    code=400,
                ),
                5000,
                4096,
            ),
            too_long(
                400,
                flat(
                    "Requested token count exceeds the model's maximum context length of 4096 "
                    "tokens. You requested a total of 5100 tokens.",
                    code=400,
                ),
                None,
                4096,
            ),
        ),
        stream=stream_with_running_usage(),
        cut_usage=usage_after(2),
        models=listed(max_model_len=4096),
        context_length=4096,
    ),
    EngineExchanges(
        engine="tensorrt_llm",
        ready=(200, b""),
        unready=(503, b"", ReadinessState.FAILED),
        metrics=f"""{noise}
trtllm_num_requests_running{{model_name="a-model"}} 2
trtllm_num_requests_waiting{{model_name="a-model"}} 5
trtllm_kv_cache_utilization{{model_name="a-model"}} 0.125
trtllm_prompt_tokens_total{{model_name="a-model"}} 900
trtllm_generation_tokens_total{{model_name="a-model"}} 80
trtllm_prompt_cached_tokens_total{{model_name="a-model"}} 300
""",
        load=EngineLoad(2, 5, 0.125, 900, 80, 300),
        errors=(
            too_long(
                400,
                flat(
                    "The sum of prompt length (5000.0), query length (0) should not exceed "
                    "max_num_tokens (4096)",
                    type="BadRequestError",
                    code=400,
                ),
                5000,
                4096,
            ),
            ErrorExchange(
                400,
                flat("[{'type': 'extra_forbidden', 'loc': ('body', 'x')}]", code=400),
                InvalidRequest,
            ),
        ),
        stream=stream_with_running_usage(),
        cut_usage=usage_after(2),
        models=listed(),
    ),
    EngineExchanges(
        engine="tgi",
        ready=(200, b""),
        unready=(
            503,
            b'{"error":"unhealthy","error_type":"healthcheck"}',
            ReadinessState.LOADING,
        ),
        metrics=f"""{noise}
tgi_batch_current_size 4
tgi_queue_size 6
tgi_batch_current_max_tokens 500
tgi_batch_max_total_tokens 2000
tgi_request_input_length_bucket{{le="64"}} 3
tgi_request_input_length_sum 321
tgi_request_input_length_count 3
tgi_request_generated_tokens_sum 45
tgi_request_generated_tokens_count 3
""",
        load=EngineLoad(4, 6, 0.25, 321, 45),
        errors=(
            too_long(
                422,
                json.dumps(
                    {
                        "error": "Input validation error: `inputs` tokens + `max_new_tokens` must "
                        "be <= 4096. Given: 5000 `inputs` tokens and 100 `max_new_tokens`",
                        "error_type": "validation",
                    }
                ).encode(),
                5000,
                4096,
            ),
            ErrorExchange(
                422,
                b'{"error":"Input validation error: `temperature` must be strictly positive",'
                b'"error_type":"validation"}',
                InvalidRequest,
            ),
        ),
        stream=stream_with_usage_at_end(),
        models=listed(),
    ),
    EngineExchanges(
        engine="transformers",
        ready=(200, b'{"status":"ok"}'),
        unready=None,
        errors=(
            ErrorExchange(
                422,
                b'{"detail":[{"type":"json_invalid","loc":["body",1],"msg":"JSON decode error"}]}',
                InvalidRequest,
            ),
        ),
        stream=stream_with_usage_at_end(own_chunk=False, marker=b""),
        models=listed(owned_by="hf"),
    ),
    EngineExchanges(
        engine="ollama",
        ready=(200, b"Ollama is running"),
        unready=None,
        errors=(
            ErrorExchange(
                400,
                nested("invalid message format", type="invalid_request_error", code=None),
                InvalidRequest,
            ),
        ),
        stream=stream_with_usage_at_end(),
        models=listed(owned_by="library"),
        calls_come_whole=True,
    ),
    EngineExchanges(
        engine="lm_studio",
        ready=(200, listed()),
        unready=None,
        errors=(ErrorExchange(400, b'{"error":"\'messages\' is required"}', InvalidRequest),),
        stream=stream_with_usage_at_end(),
        models=listed(owned_by="organization_owner"),
    ),
    EngineExchanges(
        engine="openvino",
        ready=(200, config_of("AVAILABLE")),
        unready=(200, config_of("LOADING"), ReadinessState.STARTING),
        metrics=f"""{noise}
ovms_current_graphs{{name="a-model"}} 2
ovms_requests_accepted{{api="V3",interface="REST",method="Unary",name="a-model"}} 7
""",
        load=EngineLoad(running_requests=2),
        errors=(
            too_long(
                400,
                json.dumps(
                    {
                        "error": "Mediapipe execution failed. MP status - INVALID_ARGUMENT: "
                        "CalculatorGraph::Run() failed: Number of prompt tokens: 5000 exceeds "
                        "model max length: 4096"
                    }
                ).encode(),
                5000,
                4096,
            ),
            ErrorExchange(400, b'{"error":"Invalid JSON structure"}', InvalidRequest),
        ),
        stream=stream_with_usage_at_end(),
        models=listed(),
    ),
    *platform_exchanges,
    *service_exchanges,
)
