"""Hugging Face's `transformers serve`, as far as headrace must know it.

For models that no faster engine has yet; not for load.

Known traps:

* 4.57 to 5.x: it listens, and /health says ok, before a model is loaded; the first request loads
  it. -> Ready means that a real token came, as for every engine.
* 4.57 to 5.x: a model is taken out of memory when idle for 300 s. -> `--model-timeout -1` is
  passed.
* 4.57 to 5.x: streams have no end marker; the last chunk has the usage. -> That is taken as the
  end.
* 4.57 to 5.x: `stream_options`, `max_completion_tokens`, `response_format`, `n` and others are not
  used; with `--input-validation` they are refused. -> `stream_options` is not sent, and the option
  is the platform's: it stays off.
* 5.x: `frequency_penalty` becomes a repetition penalty. -> As it is.
* before 5.x: no /v1/completions, where the probe asks for its token. -> Use 5.x.
* all read: no key, no metrics. -> It listens where only gateways reach it; the router counts for
  itself.
* all read: without `--continuous-batching` one request runs at a time. -> Passed.
* all read: the model is called by its path. -> `--force-model` answers any name with it.
"""

import msgspec

from headrace.adapters.facts import Ability, Abort, EngineFacts, Evidence, Start, StreamUsage
from headrace.adapters.openai_compatible import OpenAICompatible, ReadyAnswers, no_key, options
from headrace.adapters.protocol import LaunchCommand, LaunchRequest

program = "transformers"
keep_loaded_s = -1

platform_options = frozenset(
    ("--host", "--port", "--force-model", "--input-validation", "--enable-cors", "--non-blocking")
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
            *(program, "serve", "--force-model", request.model_path),
            *("--host", request.host, "--port", str(request.port)),
            *("--continuous-batching", "--model-timeout", str(keep_loaded_s)),
            *options(("--quantization", request.quantization)),
        ),
        {} if request.threads is None else {"OMP_NUM_THREADS": str(request.threads)},
    )


adapter = OpenAICompatible(
    name="transformers",
    facts=EngineFacts(
        title="Transformers (transformers serve)",
        start=Start.PROCESS,
        evidence=Evidence.REPLAYED,
        version_read="4.57 and 5.x sources",
        abilities=frozenset(
            (Ability.CHAT, Ability.COMPLETIONS, Ability.RESPONSES, Ability.TOOLS, Ability.VISION)
        ),
        stream_usage=StreamUsage.AT_END,
        abort=Abort.DISCONNECT,
        authenticates=False,
        package="transformers[serving] (PyPI)",
        listens_while_loading=True,
        notes=__doc__ or "",
    ),
    build=build,
    ready=ReadyAnswers(is_ok),
    metrics_path=None,
    platform_options=platform_options,
    make_headers=no_key,
    stream_fields={},
    marks_stream_end=False,
)
