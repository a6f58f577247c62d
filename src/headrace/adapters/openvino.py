"""OpenVINO Model Server, as far as headrace must know it.

People start it, as its image or the `ovms` program (`--task text_generation --rest_port 8000`),
with a model in OpenVINO's format; headrace reaches it at its address. It was never run with
headrace: no Python package of the server was found (November 2026, Python 3.11; `ovms` and
`openvino-model-server` are not there, `ovmsclient` is a client).

Known traps:

* all read: OpenAI's routes are under /v3. -> Asked for there.
* all read: /v1/config tells the state of each model that it serves. -> Ready once all of them are
  AVAILABLE; then a real token must come.
* all read: no key. -> It must listen where only gateways reach it.
* all read: metrics are off without `--metrics_enable`, and tell of requests that run, not of KV nor
  of those that wait. -> Start it so; the router counts the rest for itself.
* all read: a streamed answer has the stop string in it, and refuses to be asked otherwise. -> Not
  taken out: the engine's text goes out as it is.
* all read: a stream has no log-probabilities. -> Not claimed.
* 2024-08 and later (#2610): a closed connection ends its request, streamed or not. -> Use a newer
  one; an abort is billed by what passed, because usage comes at a stream's end.
* all read: tool calls are plain text unless the graph names a `tool_parser`. -> Name it there.
* #4503, open: a device's queue may stop while the server answers. -> The probe asks for a real
  token, and takes a replica out that gives none.
"""

from collections.abc import Mapping

import msgspec

from headrace.adapters.engine_errors import ContextPattern
from headrace.adapters.facts import Ability, Abort, EngineFacts, Evidence, Start, StreamUsage
from headrace.adapters.load_metrics import LoadMetrics
from headrace.adapters.openai_compatible import (
    OpenAICompatible,
    ReadyAnswers,
    no_key,
    not_started_here,
)

available = "AVAILABLE"

context_patterns = (
    ContextPattern.of(r"prompt tokens: (?P<prompt>\d+) exceeds model max length: (?P<context>\d+)"),
)
metrics = LoadMetrics(running=("ovms_current_graphs",))


class VersionStatus(msgspec.Struct):
    """One version of a model."""

    state: str


class ModelStatus(msgspec.Struct):
    """A model that it serves."""

    model_version_status: list[VersionStatus]


_decode = msgspec.json.Decoder(Mapping[str, ModelStatus]).decode


def are_available(body: bytes) -> bool:
    """Whether there are models, and all of them serve."""
    try:
        models = _decode(body).values()
    except msgspec.DecodeError:
        return False
    states = [version.state for model in models for version in model.model_version_status]
    return bool(states) and all(state == available for state in states)


adapter = OpenAICompatible(
    name="openvino",
    facts=EngineFacts(
        title="OpenVINO Model Server",
        start=Start.EXTERNAL,
        evidence=Evidence.REPLAYED,
        version_read="documents of 2025 and 2026",
        abilities=frozenset(
            (
                *(Ability.CHAT, Ability.COMPLETIONS, Ability.RESPONSES, Ability.EMBEDDINGS),
                *(Ability.TOOLS, Ability.JSON_SCHEMA, Ability.VISION, Ability.PREFIX_CACHE),
            )
        ),
        stream_usage=StreamUsage.AT_END,
        abort=Abort.DISCONNECT,
        authenticates=False,
        image="openvino/model_server",
        listens_while_loading=True,
        notes=__doc__ or "",
    ),
    build=not_started_here("OpenVINO Model Server", "Start `ovms`, then give its address."),
    ready=ReadyAnswers(are_available),
    readiness_path="/v1/config",
    read_load=metrics.load,
    context_patterns=context_patterns,
    context_statuses=frozenset((500,)),
    make_headers=no_key,
    api_prefix="/v3",
    request_id_header=None,
)
