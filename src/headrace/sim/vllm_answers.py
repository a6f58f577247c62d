"""What vLLM answers when asked for its metrics, or for more than its context holds."""

from headrace.adapters.protocol import EngineLoad
from headrace.sim.engine_wire import (
    flat,
    nested,
    noise,
    too_long,
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
