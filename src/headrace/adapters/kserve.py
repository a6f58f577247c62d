"""A KServe InferenceService with the Hugging Face runtime, as far as headrace must know it.

KServe's controllers start and scale it; headrace reaches it at its URL. The runtime runs vLLM, and
where vLLM lacks the model, a plain Transformers backend that is no match for load. headrace writes
no InferenceService: replicas, rollouts and readiness would have two owners (decision 0077). Where
headrace is to own them, run engine `vllm` with the Kubernetes launcher.

Known traps:

* all read: OpenAI's routes are under /openai/v1. -> Asked for there.
* all read: readiness of the server (/v2/health/ready) is not that of the model. -> A real token
  must come.
* #5527: two scalers fight over `replicas`. -> Give the scale to one of them; headrace does not
  touch it.
* all read: scale to zero makes the first request wait in the activator. -> Give deployments a time
  for their first token that covers a start.
* all read: an Istio or Knative route answers 404 or 503 with HTML or plain text. -> Never passed
  on.
"""

import msgspec

from headrace.adapters.facts import Ability, Abort, EngineFacts, Evidence, Start, StreamUsage
from headrace.adapters.openai_compatible import (
    OpenAICompatible,
    ReadyAnswers,
    not_started_here,
    usage_in_every_chunk,
)
from headrace.adapters.vllm import context_patterns, metrics


class ReadyBody(msgspec.Struct):
    """What /v2/health/ready answers."""

    ready: bool


def is_ready(body: bytes) -> bool:
    """Whether the server says that it is ready."""
    try:
        return msgspec.json.decode(body, type=ReadyBody).ready
    except msgspec.DecodeError:
        return False


adapter = OpenAICompatible(
    name="kserve",
    facts=EngineFacts(
        title="KServe InferenceService",
        start=Start.EXTERNAL,
        evidence=Evidence.REPLAYED,
        version_read="documents of 0.15 to 0.20",
        abilities=frozenset(
            (
                *(Ability.CHAT, Ability.COMPLETIONS, Ability.EMBEDDINGS, Ability.TOOLS),
                *(Ability.JSON_SCHEMA, Ability.LOGPROBS, Ability.LORA, Ability.TENSOR_PARALLEL),
                *(Ability.PREFIX_CACHE, Ability.PREFIX_SALT),
            )
        ),
        stream_usage=StreamUsage.EVERY_CHUNK,
        abort=Abort.DISCONNECT,
        authenticates=True,
        image="kserve/huggingfaceserver",
        listens_while_loading=True,
        notes=__doc__ or "",
    ),
    build=not_started_here("KServe", "Create the InferenceService, then give its URL."),
    ready=ReadyAnswers(is_ready),
    readiness_path="/v2/health/ready",
    read_load=metrics.load,
    context_patterns=context_patterns,
    api_prefix="/openai/v1",
    stream_fields=usage_in_every_chunk,
    salt_field="cache_salt",
)
