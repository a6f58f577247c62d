"""An answer as spans: how long it waited, read its prompt, and wrote; made once it has ended.

Texts that become vectors are one span.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from headrace.base.errors import HeadraceError
from headrace.engine_server.answers import Answer
from headrace.observability.metrics import gen_ai_operation, gen_ai_provider
from headrace.observability.tracing import Attributes, RequestTrace


def end_trace(
    trace: RequestTrace,
    answer: Answer,
    *,
    request_id: str,
    model_name: str,
    started_s: float,
    error_code: str | None,
) -> None:
    """End an answer's trace; a step of the engine is no span, there may be thousands of them."""
    progress, output = answer.progress, answer.last_output
    attributes: Attributes = {
        "gen_ai.operation.name": gen_ai_operation,
        "gen_ai.provider.name": gen_ai_provider,
        "gen_ai.request.model": model_name,
        "headrace.request.id": request_id,
    }
    if output is not None and progress.first_s is not None:
        queue_s = output.queue_s or 0.0
        first_s = started_s + progress.first_s - progress.start_s
        last_s = started_s + progress.last_s - progress.start_s
        computed_s = min(started_s + queue_s, first_s)
        gaps = progress.outputs - 1
        trace.past("queue", started_s, computed_s, {})
        trace.past(
            "prefill",
            computed_s,
            first_s,
            {
                "gen_ai.usage.input_tokens": output.prompt_tokens,
                "gen_ai.usage.cache_read.input_tokens": output.cached_tokens,
            },
        )
        decode: Attributes = {
            "gen_ai.usage.output_tokens": output.completion_tokens,
            "headrace.decode.outputs": progress.outputs,
        }
        if gaps:
            decode["headrace.decode.mean_gap_ms"] = round((last_s - first_s) / gaps * 1000, 3)
        trace.past("decode", first_s, last_s, decode)
        attributes["gen_ai.usage.input_tokens"] = output.prompt_tokens
        attributes["gen_ai.usage.output_tokens"] = output.completion_tokens
        if output.finish_reason is not None:
            attributes["gen_ai.response.finish_reasons"] = output.finish_reason
    trace.end(attributes, error_code)


@dataclass(slots=True)
class EmbeddingSpan:
    """What is known of a request for vectors once it has ended."""

    input_tokens: int = 0


@contextmanager
def embedding_span(trace: RequestTrace, model_name: str) -> Iterator[EmbeddingSpan]:
    """The block's work on vectors as the trace of a request, which ends with it."""
    span, code = EmbeddingSpan(), None
    try:
        yield span
    except HeadraceError as error:
        code = error.code
        raise
    finally:
        attributes: Attributes = {
            "gen_ai.operation.name": "embeddings",
            "gen_ai.provider.name": gen_ai_provider,
            "gen_ai.request.model": model_name,
        }
        if span.input_tokens:
            attributes["gen_ai.usage.input_tokens"] = span.input_tokens
        trace.end(attributes, code)
