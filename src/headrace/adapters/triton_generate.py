"""NVIDIA Triton by KServe's v2 protocol and its `generate` extension, without the OpenAI frontend.

`model_path` is a model repository; the served name is that of a model in it which takes
`text_input`: one of the vLLM backend (`triton_vllm`), or the `ensemble` or BLS model of the
TensorRT-LLM backend (`triton_tensorrt_llm`). Chats are translated both ways
(`protocol.generate_of_chat`, `protocol.chat_of_generated`).

Known traps:

* all read: the extension takes a prompt and applies no chat template. -> The gateway applies the
  one that the model version was given (`headrace models create --chat-template`), without its
  `bos_token`, which the server's tokenizer puts there. Without one turns are written as `User:` and
  `Assistant:`, and `User:` ends an answer: most chat models answer worse to that.
* all read: prompts are text, so a caller who spells a special token has it read as one. -> Not
  changed; where that matters start the OpenAI frontend or an engine of its own.
* all read: no tools, images, schemas, log-probabilities, several answers; no completions of ours.
  -> A 400 names the field, a 404 the route.
* vLLM backend, by its source: use and the finish reason are told where they are asked for, the
  output's by event; before 2024-11 they are not. -> Asked for. Use a newer one.
* TensorRT-LLM backend, by its models' files: use is told where it is asked for, the output's by
  event, since mid-2025 (TensorRT-LLM #5445), by `tensorrt_llm_bls` since its #8150. -> Asked
  for. With an older one events are counted as tokens, and settlements are marked as counted by us.
* TensorRT-LLM backend: the finish reason is not told, and a stream ends with its body. -> "stop" is
  said, also where `max_tokens` ended it.
* TensorRT-LLM backend: one event is one token only while `accumulate_tokens` is off; streams need
  `decoupled_mode`. -> Set them so in the repository.
* TensorRT-LLM backend: the prompt is part of the answer unless `exclude_input_in_output` is set. ->
  Sent to both; models that are too old to have that input need it in the repository.
* all read: an error is `{"error": "words"}`, in a stream after its 200 too. -> Read there.
* vLLM backend: whatever vLLM refuses is 500, a prompt that does not fit too. -> That one is told to
  its caller, the rest is the engine's failure.
* all read: "not ready" is 400 at /v2/health/ready with nothing in it, not 503; it tells of all
  models together. -> Read as loading; a token must come.
* server #7077: a closed connection is seen at the next event of a stream, and not at all before the
  whole of an unstreamed answer. -> Said in the matrix.
* by its documents: metrics are at a port of their own (8002). -> Not started; the router counts for
  itself.
* all read: no key. -> It listens where only gateways reach it.
* all read: parallelism, context and quantization are in the repository's files, not options. -> Not
  passed.
"""

from collections.abc import Callable, Sequence

from headrace.adapters.engine_errors import ContextPattern
from headrace.adapters.facts import Ability, Abort, EngineFacts, Evidence, Start, StreamUsage
from headrace.adapters.openai_compatible import OpenAICompatible, ReadyAnswers, empty_body, no_key
from headrace.adapters.protocol import Dialect, LaunchCommand, LaunchRequest
from headrace.adapters.vllm import context_patterns as vllm_context_patterns
from headrace.protocol.chat_of_generated import GeneratedChunks, chat_of_generated
from headrace.protocol.generate_of_chat import (
    ChatWriter,
    generate_of_chat_for_tensorrt_llm,
    generate_of_chat_for_vllm,
)

platform_options = frozenset(
    ("--http-address", "--http-port", "--model-repository", "--allow-http")
)

tensorrt_llm_context_patterns = (
    ContextPattern.of(
        r"prompt length \((?P<prompt>\d+)\).* exceeds? .*maximum input length \((?P<context>\d+)\)"
    ),
    ContextPattern.of(
        r"prompt length \((?P<prompt>\d+)(?:\.0)?\).* should not exceed max_num_tokens "
        r"\((?P<context>\d+)\)"
    ),
)


def build(request: LaunchRequest) -> LaunchCommand:
    """One server that answers by HTTP alone."""
    return LaunchCommand(
        (
            *("tritonserver", "--model-repository", request.model_path),
            *("--http-address", request.host, "--http-port", str(request.port)),
            *("--allow-grpc", "false", "--allow-metrics", "false"),
        ),
        {} if request.threads is None else {"OMP_NUM_THREADS": str(request.threads)},
    )


def dialect(
    request: Callable[[bytes, ChatWriter | None], tuple[str, bytes]], *, ends_with_body: bool
) -> Dialect:
    """The extension as a backend takes it."""
    return Dialect(
        request=request,
        whole=chat_of_generated,
        stream=GeneratedChunks,
        ends_with_body=ends_with_body,
    )


def facts_of(backend: str, images: str, stream_usage: StreamUsage, notes: str) -> EngineFacts:
    """What is known of a backend."""
    return EngineFacts(
        title=f"NVIDIA Triton (KServe v2, {backend} backend)",
        start=Start.PROCESS,
        evidence=Evidence.REPLAYED,
        version_read="documents of the extension; backends' sources of 2024 to 2026",
        abilities=frozenset((Ability.CHAT, Ability.TENSOR_PARALLEL)),
        stream_usage=stream_usage,
        abort=Abort.DISCONNECT_LATE,
        authenticates=False,
        image=f"nvcr.io/nvidia/tritonserver (-{images}-python-py3)",
        notes=notes,
    )


def adapter_of(
    name: str, facts: EngineFacts, context_patterns: Sequence[ContextPattern], spoken: Dialect
) -> OpenAICompatible:
    """The adapter of one backend."""
    return OpenAICompatible(
        name=name,
        facts=facts,
        build=build,
        ready=ReadyAnswers(empty_body, unready_status=400),
        readiness_path="/v2/health/ready",
        metrics_path=None,
        platform_options=platform_options,
        context_patterns=context_patterns,
        context_statuses=frozenset((500,)),
        make_headers=no_key,
        api_prefix="",
        request_id_header=None,
        dialect=spoken,
    )


vllm = adapter_of(
    "triton_vllm",
    facts_of("vLLM", "vllm", StreamUsage.EVERY_CHUNK, __doc__ or ""),
    vllm_context_patterns,
    dialect(generate_of_chat_for_vllm, ends_with_body=False),
)
tensorrt_llm = adapter_of(
    "triton_tensorrt_llm",
    facts_of(
        "TensorRT-LLM",
        "trtllm",
        StreamUsage.EVERY_CHUNK,
        "The same server with models of the TensorRT-LLM backend; the traps are at `triton_vllm`.",
    ),
    tensorrt_llm_context_patterns,
    dialect(generate_of_chat_for_tensorrt_llm, ends_with_body=True),
)
