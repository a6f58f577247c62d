"""Ollama's server, as far as headrace must know it.

`ollama serve` has no model of its own: the served name must have been pulled or created there
(`ollama pull`, `ollama cp` for another name). Everything is set by variables.

Known traps:

* all read: no key at all. -> It listens where only gateways reach it.
* all read: no metrics, no queue depth. -> The router counts for itself.
* all read: it answers at once, and loads a model at its first request, which waits. -> Ready means
  that a real token came.
* all read: one request at a time unless OLLAMA_NUM_PARALLEL says more. -> Set where declared.
* all read: models are unloaded when idle for 5 minutes. -> OLLAMA_KEEP_ALIVE=-1.
* #17889, #17427, #10974: prompts beyond the context are cut silently. -> Declare the context; the
  gateway cannot see a cut.
* #11889: a client that leaves during a long prompt is noticed at the first write. -> Said in the
  matrix.
* #1863, #7779, #15950: a model hangs in "stopping"; a restart is the cure. -> Silence restarts it.
* all read: a full queue (OLLAMA_MAX_QUEUE) is 503. -> Try another.
* all read: `tool_choice` and `logit_bias` are ignored. -> Not claimed.
"""

from headrace.adapters.facts import Ability, Abort, EngineFacts, Evidence, Start, StreamUsage
from headrace.adapters.openai_compatible import OpenAICompatible, ReadyAnswers, no_key
from headrace.adapters.protocol import LaunchCommand, LaunchRequest

program = "ollama"
greeting = b"Ollama is running"
host_variable = "OLLAMA_HOST"


def is_greeting(body: bytes) -> bool:
    """Whether it is Ollama that answers."""
    return body.strip() == greeting


def build(request: LaunchRequest) -> LaunchCommand:
    """One server; its models are those in its own store."""
    environment = {
        host_variable: f"{request.host}:{request.port}",
        "OLLAMA_KEEP_ALIVE": "-1",
        "OLLAMA_MAX_LOADED_MODELS": "1",
    }
    if request.context_length is not None:
        environment["OLLAMA_CONTEXT_LENGTH"] = str(request.context_length)
    if request.sequences_max is not None:
        environment["OLLAMA_NUM_PARALLEL"] = str(request.sequences_max)
    return LaunchCommand((program, "serve"), environment)


adapter = OpenAICompatible(
    name="ollama",
    facts=EngineFacts(
        title="Ollama",
        start=Start.PROCESS,
        evidence=Evidence.REPLAYED,
        version_read="sources of 2026",
        abilities=frozenset(
            (
                *(Ability.CHAT, Ability.COMPLETIONS, Ability.RESPONSES, Ability.MESSAGES),
                *(Ability.EMBEDDINGS, Ability.TOOLS, Ability.JSON_SCHEMA, Ability.VISION),
                Ability.PREFIX_CACHE,
            )
        ),
        stream_usage=StreamUsage.AT_END,
        abort=Abort.DISCONNECT_LATE,
        authenticates=False,
        image="ollama/ollama",
        listens_while_loading=True,
        notes=__doc__ or "",
    ),
    build=build,
    ready=ReadyAnswers(is_greeting),
    readiness_path="/",
    metrics_path=None,
    make_headers=no_key,
    request_id_header=None,
)
