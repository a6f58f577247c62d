"""The metrics of an engine server, declared once; the aliases are what routers read from vLLM.

Token counters agree to the token with the usage that answers and `/internal/usage` report.
"""

from headrace.observability.metrics import MetricDeclaration, MetricKind

counter, gauge, histogram = MetricKind.COUNTER, MetricKind.GAUGE, MetricKind.HISTOGRAM

running_requests = MetricDeclaration(
    "headrace_engine_running_requests",
    gauge,
    "Requests that the engine computes now.",
    alias="vllm:num_requests_running",
)
waiting_requests = MetricDeclaration(
    "headrace_engine_waiting_requests",
    gauge,
    "Requests that wait for the engine.",
    alias="vllm:num_requests_waiting",
)
waiting_requests_by_reason = MetricDeclaration(
    "headrace_engine_waiting_requests_by_reason",
    gauge,
    "Requests that wait: for a slot or blocks (capacity), for another to compute their prefix "
    "(deferred), for their place after they lost it (preempted), for their grammar (grammar), "
    "for their KV from another engine (kv_transfer).",
    label="reason",
    alias="vllm:num_requests_waiting_by_reason",
)
waiting_requests_by_class = MetricDeclaration(
    "headrace_engine_waiting_requests_by_class",
    gauge,
    "Requests that wait, by the class that they have aged to; the outermost stand for all beyond.",
    label="class",
)
kv_usage_ratio = MetricDeclaration(
    "headrace_engine_kv_usage_ratio",
    gauge,
    "Share of the KV blocks that live requests hold; reclaimable cache is not counted.",
    alias="vllm:kv_cache_usage_perc",
)
kv_blocks = MetricDeclaration(
    "headrace_engine_kv_blocks", gauge, "KV blocks by state: used, free.", label="state"
)
kv_block_size_tokens = MetricDeclaration(
    "headrace_engine_kv_block_size_tokens", gauge, "Tokens that one KV block holds."
)
cache_config_info = MetricDeclaration(
    "headrace_engine_cache_config_info",
    gauge,
    "The KV cache: tokens of a block, and blocks in all, of any memory (the names are vLLM's). "
    "The value is 1.",
    alias="vllm:cache_config_info",
    info_labels=("block_size", "num_gpu_blocks"),
)
kernels_info = MetricDeclaration(
    "headrace_engine_kernels_info",
    gauge,
    "What the model is computed with: the kernels, and the bits of the activations that quantized "
    "weights are multiplied with, 8 if some are. The value is 1.",
    info_labels=("kernels", "activation_bits"),
)
prompt_tokens_total = MetricDeclaration(
    "headrace_engine_prompt_tokens_total",
    counter,
    "Prompt tokens of requests that produced an output or ended.",
    alias="vllm:prompt_tokens_total",
)
cached_tokens_total = MetricDeclaration(
    "headrace_engine_cached_tokens_total",
    counter,
    "Prompt tokens that the prefix cache had.",
    alias="vllm:prompt_tokens_cached_total",
)
completion_tokens_total = MetricDeclaration(
    "headrace_engine_completion_tokens_total",
    counter,
    "Generated tokens.",
    alias="vllm:generation_tokens_total",
)
prefix_queries_total = MetricDeclaration(
    "headrace_engine_prefix_queries_total",
    counter,
    "Prompt tokens that were looked up in the prefix cache.",
    alias="vllm:prefix_cache_queries_total",
)
prefix_hits_total = MetricDeclaration(
    "headrace_engine_prefix_hits_total",
    counter,
    "Prompt tokens that were found in the prefix cache.",
    alias="vllm:prefix_cache_hits_total",
)
finished_requests_total = MetricDeclaration(
    "headrace_engine_finished_requests_total",
    counter,
    "Requests that ended, by reason: stop, length, abort, error.",
    label="finished_reason",
    alias="vllm:request_success_total",
)
preemptions_total = MetricDeclaration(
    "headrace_engine_preemptions_total",
    counter,
    "How often a running request gave its KV blocks to another.",
    alias="vllm:num_preemptions_total",
)
leaked_kv_blocks_total = MetricDeclaration(
    "headrace_engine_leaked_kv_blocks_total",
    counter,
    "KV blocks that were held when no request was left, and were taken back: a fault of ours.",
)
recomputed_tokens_total = MetricDeclaration(
    "headrace_engine_recomputed_tokens_total",
    counter,
    "Tokens that were computed again after a preemption.",
)
saved_tokens_total = MetricDeclaration(
    "headrace_engine_saved_tokens_total",
    counter,
    "Tokens of preempted requests whose KV was copied to host memory.",
)
restored_tokens_total = MetricDeclaration(
    "headrace_engine_restored_tokens_total",
    counter,
    "Tokens whose KV was copied back instead of computed again.",
)
exported_tokens_total = MetricDeclaration(
    "headrace_engine_exported_tokens_total",
    counter,
    "Tokens of prompts whose KV was made ready for another engine.",
)
imported_tokens_total = MetricDeclaration(
    "headrace_engine_imported_tokens_total",
    counter,
    "Tokens of prompts whose KV came from another engine instead of being computed.",
)
kv_transfers_total = MetricDeclaration(
    "headrace_engine_kv_transfers_total",
    counter,
    "Transfers of KV by result. At the giver: exported, given, expired, full, gone, denied. At the "
    "taker: imported; computed instead because the KV was unreachable, broken, gone, denied, full "
    "(no room), of another fingerprint, layout or content, or unwanted.",
    label="result",
)
host_kv_blocks = MetricDeclaration(
    "headrace_engine_host_kv_blocks", gauge, "KV blocks of preempted requests in host memory."
)
planned_memory_bytes = MetricDeclaration(
    "headrace_engine_planned_memory_bytes",
    gauge,
    "Memory that the engine takes at most, by what it is for; `serve` prints the same.",
    label="part",
)
achieved_bytes_per_second = MetricDeclaration(
    "headrace_engine_achieved_bytes_per_second",
    gauge,
    "Weights and KV that the last steps without a prompt read, over their time; 0 is unknown.",
)
steps_total = MetricDeclaration("headrace_engine_steps_total", counter, "Steps of the engine.")
step_seconds_total = MetricDeclaration(
    "headrace_engine_step_seconds_total", counter, "Time in the model runner."
)
scheduler_seconds_total = MetricDeclaration(
    "headrace_engine_scheduler_seconds_total", counter, "Time of the steps outside the runner."
)
drafts_total = MetricDeclaration(
    "headrace_engine_drafts_total",
    counter,
    "How often a request got guesses of its next tokens to verify.",
    alias="vllm:spec_decode_num_drafts_total",
)
draft_seconds_total = MetricDeclaration(
    "headrace_engine_draft_seconds_total",
    counter,
    "Time of the draft model's steps, which is part of the steps' time outside the runner.",
)
draft_tokens_total = MetricDeclaration(
    "headrace_engine_draft_tokens_total",
    counter,
    "Guessed tokens that were verified.",
    alias="vllm:spec_decode_num_draft_tokens_total",
)
accepted_tokens_total = MetricDeclaration(
    "headrace_engine_accepted_draft_tokens_total",
    counter,
    "Guessed tokens that were right.",
    alias="vllm:spec_decode_num_accepted_tokens_total",
)
accepted_tokens_by_position_total = MetricDeclaration(
    "headrace_engine_accepted_draft_tokens_by_position_total",
    counter,
    "Guessed tokens that were right, by their place in the guess.",
    label="position",
    alias="vllm:spec_decode_num_accepted_tokens_per_pos_total",
)
restarts_total = MetricDeclaration(
    "headrace_engine_restarts_total", counter, "How often the engine process was started again."
)
loop_failures_total = MetricDeclaration(
    "headrace_engine_loop_failures_total",
    counter,
    "Faults of loops beside the engine; each is logged, and its loop goes on after a pause.",
    label="loop",
)
disconnects_total = MetricDeclaration(
    "headrace_engine_client_disconnects_total",
    counter,
    "Requests whose client went away before the answer was complete.",
)
queue_seconds = MetricDeclaration(
    "headrace_engine_queue_time_seconds",
    histogram,
    "From a request's arrival in the engine to its first step, of requests that ended.",
    alias="vllm:request_queue_time_seconds",
)
first_token_seconds = MetricDeclaration(
    "headrace_engine_time_to_first_token_seconds",
    histogram,
    "From a request's arrival here to its first output.",
    alias="vllm:time_to_first_token_seconds",
    gen_ai="gen_ai_server_time_to_first_token_seconds",
)
inter_token_seconds = MetricDeclaration(
    "headrace_engine_inter_token_latency_seconds",
    histogram,
    "Between two outputs of a request.",
    alias="vllm:inter_token_latency_seconds",
    gen_ai="gen_ai_server_time_per_output_token_seconds",
)
request_seconds = MetricDeclaration(
    "headrace_engine_request_duration_seconds",
    histogram,
    "From a request's arrival here to its last output.",
    alias="vllm:e2e_request_latency_seconds",
    gen_ai="gen_ai_server_request_duration_seconds",
)
request_tokens = MetricDeclaration(
    "headrace_engine_request_tokens",
    histogram,
    "Tokens of a request that ended, by type: input (cached ones included), output.",
    label="type",
    gen_ai="gen_ai_client_token_usage",
    gen_ai_label="gen_ai_token_type",
)
adapters_loaded = MetricDeclaration(
    "headrace_engine_adapters_loaded", gauge, "LoRA adapters that requests can ask for."
)
adapter_requests = MetricDeclaration(
    "headrace_engine_adapter_requests",
    gauge,
    "Requests that have not ended, by the LoRA adapter that they ask for.",
    label="adapter",
)
adapters_info = MetricDeclaration(
    "headrace_engine_adapters_info",
    gauge,
    "The adapters that requests have begun with and wait for, separated by commas, and how many "
    "can be loaded; the value is the time of the sample.",
    alias="vllm:lora_requests_info",
    info_labels=("max_lora", "waiting_lora_adapters", "running_lora_adapters"),
)
