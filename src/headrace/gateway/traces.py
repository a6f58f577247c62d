"""What a request's trace says: begun and ended at the edge, from what the access log may know."""

from headrace.gateway.access_log import AccessRecord
from headrace.gateway.route_table import Call
from headrace.http.asgi import header
from headrace.observability.tracing import Attributes, RequestTrace, Tracer
from headrace.router.lease import Lease

provider = "headrace"
fields = {  # of the access record, by what they are called in a trace
    "request_id": "headrace.request.id",
    "route": "http.route",
    "status": "http.response.status_code",
    "tenant_id": "headrace.tenant.id",
    "project_id": "headrace.project.id",
    "key_id": "headrace.key.id",
    "model": "gen_ai.request.model",
    "endpoint_id": "headrace.endpoint.id",
    "attempts": "headrace.attempts",
    "outcome": "headrace.outcome",
    "prompt_tokens": "gen_ai.usage.input_tokens",
    "cached_tokens": "gen_ai.usage.cache_read.input_tokens",
    "completion_tokens": "gen_ai.usage.output_tokens",
}
operations = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
    "/v1/rerank": "embeddings",
    "/v1/score": "embeddings",
}


def begin(tracer: Tracer, call: Call) -> RequestTrace:
    """The trace of a request that was authenticated, child of what its client says."""
    record = call.record
    trace = tracer.begin(f"POST {record.route}", header(call.scope, b"traceparent"), record.time)
    trace.note({"http.request.method": "POST", "gen_ai.provider.name": provider})
    record.trace_id = trace.exemplar_id or None
    return trace


def end(trace: RequestTrace, record: AccessRecord) -> None:
    """End a request's trace with what its line in the access log says."""
    attributes: Attributes = {
        "gen_ai.operation.name": operations.get(record.route, "generate_content")
    }
    for field, name in fields.items():
        value = getattr(record, field)
        if value:
            attributes[name] = value
    trace.end(attributes, record.error)


def attempt_attributes(lease: Lease, number: int) -> Attributes:
    """Where an attempt goes."""
    spec = lease.endpoint.spec
    return {
        "headrace.attempt": number,
        "headrace.endpoint.id": spec.id,
        "headrace.deployment.id": spec.deployment_id,
        "gen_ai.request.model": spec.served_model_name,
    }
