"""Hugging Face's `transformers serve`, as far as headrace must know it.

For models that no faster engine has yet; not for load.

Known traps:

* 5.24, measured: streams have no end marker; usage, also unasked, is in the last chunk. -> That is
  taken as the end.
* 5.24, measured: a server of one model answers to no other name than the path that it was given.
  -> The gateway sends the path.
* 5.24, measured: the model is an argument; before, it was `--force-model`. -> The argument is
  given; use 5.24 or later.
* 5.24, measured: it does not listen before the model is loaded. -> No answer is LOADING.
* 5.24, measured: a GGUF file, named as its help says, fails to load. -> Give it a directory.
* 5.24, measured: a malformed `messages` is 500 in plain text. -> The gateway refuses it first.
* 5.24, measured: errors are FastAPI's, `detail`. -> Read there.
* before 5.x: no /v1/completions, where the probe asks for its token. -> Use 5.24 or later.
* 4.57 to 5.24: `stream_options`, `response_format`, `n` and others are not used. ->
  `stream_options` is not sent.
* 5.x: `frequency_penalty` becomes a repetition penalty. -> As it is.
* all read: no key, no metrics. -> It listens where only gateways reach it; the router counts for
  itself.
* 5.24, measured: on a processor the paged cache takes most of the memory, and the first token
  takes minutes. -> Give `--cb-num-blocks` and `--cb-block-size` in the engine arguments.
* 5.24, measured: a request that needs more than the paged cache ends the generation loop, and
  /health is 503 from then on. -> Declare the model's context and give the cache room for it: the
  gateway lowers the output limit to what the prompt leaves (`gateway/context_room.py`). Else the
  replica is started again.
* 5.24, read: without a limit an answer ends after 1,024 tokens. -> The gateway sends one.
* all read: without `--continuous-batching` one request runs at a time. -> Passed.
"""

import msgspec

from headrace.adapters.facts import Ability, Abort, EngineFacts, Evidence, Start, StreamUsage
from headrace.adapters.openai_compatible import OpenAICompatible, ReadyAnswers, no_key, options
from headrace.adapters.protocol import LaunchCommand, LaunchRequest

program = "transformers"

platform_options = frozenset(
    ("--host", "--port", "--force-model", "--enable-cors", "--model-timeout")
)


class HealthBody(msgspec.Struct):
    """What /health answers."""

    status: str


def is_ok(body: bytes) -> bool:
    """Whether it is this server that answers."""
    try:
        return msgspec.json.decode(body, type=HealthBody).status == "ok"
    except msgspec.DecodeError:
        return False


def build(request: LaunchRequest) -> LaunchCommand:
    """One server of one model."""
    return LaunchCommand(
        (
            *(program, "serve", request.model_path),
            *("--host", request.host, "--port", str(request.port), "--continuous-batching"),
            *options(
                ("--quantization", request.quantization),
                ("--cb-max-memory-percent", request.memory_share),
            ),
        ),
        {} if request.threads is None else {"OMP_NUM_THREADS": str(request.threads)},
    )


adapter = OpenAICompatible(
    name="transformers",
    facts=EngineFacts(
        title="Transformers (transformers serve)",
        start=Start.PROCESS,
        evidence=Evidence.REAL,
        version_read="sources of 4.57 to 5.x; measured with 5.24.0 on a CPU",
        tests="tests/contract/test_adapter.py, tests/e2e/test_up_transformers.py",
        abilities=frozenset(
            (Ability.CHAT, Ability.COMPLETIONS, Ability.RESPONSES, Ability.TOOLS, Ability.VISION)
        ),
        stream_usage=StreamUsage.AT_END,
        abort=Abort.DISCONNECT,
        authenticates=False,
        checks_context=False,
        package="transformers[serving] (PyPI)",
        notes=__doc__ or "",
    ),
    build=build,
    ready=ReadyAnswers(is_ok),
    metrics_path=None,
    platform_options=platform_options,
    make_headers=no_key,
    names_model_by_path=True,
    stream_fields={},
    marks_stream_end=False,
)
