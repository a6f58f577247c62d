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
    anthropic_error,
    config_of,
    flat,
    generated_stream,
    listed,
    llama_stream,
    message_stream,
    nested,
    noise,
    stream_usage,
    stream_with_running_usage,
    stream_with_usage_at_end,
    too_long,
    usage_after,
    without_cached,
)

vllm_metrics = f"""{noise}
vllm:num_requests_running{{engine="0",model_name="a-model"}} 3.0
vllm:num_requests_running{{engine="1",model_name="a-model"}} 2.0
vllm:num_requests_waiting{{engine="0",model_name="a-model"}} 4.0
vllm:num_requests_waiting{{engine="1",model_name="a-model"}} 0.0
vllm:num_requests_waiting_by_reason{{engine="0",reason="capacity"}} 9.0
vllm:kv_cache_usage_perc{{engine="0",model_name="a-model"}} 0.25
vllm:kv_cache_usage_perc{{engine="1",model_name="a-model"}} 0.75
vllm:prompt_tokens_total{{engine="0"}} 1e+06
vllm:prompt_tokens_cached_total{{engine="0"}} 4000.0
vllm:generation_tokens_total{{engine="0"}} 500.0 1700000000000
vllm:num_preemptions_total{{engine="0"}} 1.0
vllm:generation_tokens_created{{engine="0"}} 1.7e+09
"""
vllm_load = EngineLoad(5, 4, 0.75, 1_000_000, 500, 4000, 1)
vllm_too_long = (
    too_long(
        400,
        nested(
            "This model's maximum context length is 4096 tokens. However, you requested 5100 "
            "tokens (5000 in the messages, 100 in the completion). Please reduce the length.",
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
            "This model's maximum context length is 4096 tokens. However, your request has 5000 "
            "input tokens. Please reduce the length of the input messages.",
            type="BadRequestError",
            code=400,
        ),
        5000,
        4096,
    ),
    too_long(
        400,
        nested(
            "The decoder prompt (length 5000) is longer than the maximum model length of 4096.",
            code=400,
        ),
        5000,
        4096,
    ),
)

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
    EngineExchanges(
        engine="managed",
        ready=(200, listed()),
        unready=None,
        errors=(
            too_long(
                400,
                nested(
                    "This model's maximum context length is 4096 tokens. However, your messages "
                    "resulted in 5000 tokens. Please reduce the length of the messages.",
                    type="invalid_request_error",
                    param="messages",
                    code="context_length_exceeded",
                ),
                5000,
                4096,
            ),
            too_long(
                400,
                b'[{"error":{"code":400,"message":"The input token count (5000) exceeds the '
                b'maximum number of tokens allowed (4096).","status":"INVALID_ARGUMENT"}}]',
                5000,
                4096,
            ),
            too_long(
                400,
                nested("prompt is too long: 5000 tokens > 4096 maximum"),
                5000,
                4096,
            ),
        ),
        stream=stream_with_usage_at_end(),
        models=listed(context_length=4096),
        context_length=4096,
        calls_come_whole=True,
    ),
    EngineExchanges(
        engine="openai",
        ready=(200, listed()),
        unready=None,
        errors=(
            ErrorExchange(
                400,
                nested(
                    "Unsupported parameter: 'max_tokens' is not supported with this model. Use "
                    "'max_completion_tokens' instead.",
                    type="invalid_request_error",
                    param="max_tokens",
                    code="unsupported_parameter",
                ),
                InvalidRequest,
            ),
        ),
        stream=stream_with_usage_at_end(),
        models=listed(owned_by="openai"),
    ),
    EngineExchanges(
        engine="anthropic",
        ready=(200, listed(type="model", display_name="A model")),
        unready=None,
        errors=(
            too_long(
                400,
                anthropic_error("prompt is too long: 5000 tokens > 4096 maximum"),
                5000,
                4096,
            ),
            ErrorExchange(400, anthropic_error("messages: at least one"), InvalidRequest),
        ),
        stream=message_stream(),
        models=listed(type="model", display_name="A model"),
    ),
)
