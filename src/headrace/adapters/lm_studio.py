"""LM Studio's local server, as far as headrace must know it.

It is a desktop program with a daemon: people start it (`lms server start --port 1234`), load models
into it, and make its API tokens; headrace reaches it at its address.

Known traps:

* all read: no key is asked for unless "Require Authentication" is on (0.4.0 and later). -> Turn it
  on and give the token to the replica; it is sent as a bearer.
* all read: models are loaded at the first request, or unloaded when idle. -> Ready means that a
  real token came.
* all read: no metrics. -> The router counts for itself.
* all read: /v1/models does not tell the context (/api/v0/models does). -> Declare it in the model
  version.
* 0.4.0 and later: requests may call tools of `mcp.json`. -> Keep that off for shared servers.
"""

from headrace.adapters.facts import Ability, Abort, EngineFacts, Evidence, Start, StreamUsage
from headrace.adapters.listed_models import lists_models
from headrace.adapters.openai_compatible import OpenAICompatible, ReadyAnswers, not_started_here

adapter = OpenAICompatible(
    name="lm_studio",
    facts=EngineFacts(
        title="LM Studio",
        start=Start.EXTERNAL,
        evidence=Evidence.REPLAYED,
        version_read="documents of 0.4",
        abilities=frozenset(
            (
                *(Ability.CHAT, Ability.COMPLETIONS, Ability.RESPONSES, Ability.MESSAGES),
                *(Ability.EMBEDDINGS, Ability.TOOLS, Ability.JSON_SCHEMA, Ability.VISION),
                Ability.PREFIX_CACHE,
            )
        ),
        stream_usage=StreamUsage.AT_END,
        abort=Abort.DISCONNECT,
        authenticates=True,
        package="LM Studio's installer",
        listens_while_loading=True,
        notes=__doc__ or "",
    ),
    build=not_started_here("LM Studio", "Start its server with `lms server start`."),
    ready=ReadyAnswers(lists_models),
    readiness_path="/v1/models",
    metrics_path=None,
    request_id_header=None,
)
