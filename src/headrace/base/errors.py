"""The root of every operating error, so that each edge maps errors to answers in one place.

    HeadraceError                500 internal_error
    ├── InvalidRequest           400 invalid_request
    │   └── ContextLengthExceeded 400 context_length_exceeded
    ├── AuthenticationFailed     401 invalid_api_key
    ├── PaymentRequired          402 insufficient_credit
    ├── PermissionDenied         403 permission_denied
    ├── NotFound                 404 not_found
    ├── MethodNotAllowed         405 method_not_allowed
    ├── Conflict                 409 conflict
    ├── PayloadTooLarge          413 payload_too_large
    ├── KeyReused                422 idempotency_key_reused
    ├── RateLimited              429 rate_limit_exceeded   retryable
    ├── ClientClosed             499 client_closed
    ├── RequestAborted           500 request_aborted
    ├── UpstreamFailed           502 upstream_failed       retryable
    ├── Unavailable              503 unavailable           retryable
    ├── DeadlineExceeded         504 deadline_exceeded     retryable
    └── SetupError               500 setup_error: this machine, its files or its settings
        ├── ModelFileError           a model file is truncated, corrupt or unsupported
        ├── SourceError              a model could not be fetched
        │   └── DigestMismatch       it was fetched, and is not what was asked for
        └── ConfigurationError       a setting is wrong, a port is taken, a directory is in use

The message tells the reader what to do next; values that programs need are fields.
"""

from collections.abc import Iterable, Mapping
from typing import ClassVar

type_of_status: Mapping[int, str] = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    409: "conflict_error",
    413: "invalid_request_error",
    422: "invalid_request_error",
    429: "rate_limit_error",
}


class HeadraceError(Exception):
    """An operating error with a stable `code`, a message for people and fields for programs."""

    code: ClassVar[str] = "internal_error"
    http_status: ClassVar[int] = 500
    retryable: ClassVar[bool] = False

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        retry_after_s: float | None = None,
        **fields: object,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s
        self.fields = fields

    @property
    def type(self) -> str:
        """OpenAI's coarse error type for this status."""
        return type_of_status.get(self.http_status, "server_error")


class InvalidRequest(HeadraceError):
    """The caller sent something that can never succeed; `param` names the field."""

    code = "invalid_request"
    http_status = 400


class ContextLengthExceeded(InvalidRequest):
    """The prompt and the wanted output do not fit the model's context."""

    code = "context_length_exceeded"


class AuthenticationFailed(HeadraceError):
    """No credential, or one that is unknown, revoked or expired."""

    code = "invalid_api_key"
    http_status = 401


class PaymentRequired(HeadraceError):
    """Admission refused: the credit or budget does not cover the worst case."""

    code = "insufficient_credit"
    http_status = 402


class PermissionDenied(HeadraceError):
    """The credential is valid and does not allow this."""

    code = "permission_denied"
    http_status = 403


class NotFound(HeadraceError):
    """The named thing does not exist, or is not visible to this caller."""

    code = "not_found"
    http_status = 404


class MethodNotAllowed(HeadraceError):
    """The path exists and does not take this method; `allowed` are those it takes."""

    code = "method_not_allowed"
    http_status = 405

    def __init__(self, method: str, path: str, allowed: Iterable[str]) -> None:
        self.allowed = tuple(sorted(allowed))
        super().__init__(f"{path!r} takes {' and '.join(self.allowed)}, not {method}.")


class Conflict(HeadraceError):
    """The named thing exists already, is in use, or changed since it was read."""

    code = "conflict"
    http_status = 409


class PayloadTooLarge(HeadraceError):
    """The body is over the limit."""

    code = "payload_too_large"
    http_status = 413


class KeyReused(HeadraceError):
    """An `Idempotency-Key` was used for a different request; that takes a new key."""

    code = "idempotency_key_reused"
    http_status = 422


class RateLimited(HeadraceError):
    """A limit or a full queue; `retry_after_s` is when it makes sense to come back."""

    code = "rate_limit_exceeded"
    http_status = 429
    retryable = True


class ClientClosed(HeadraceError):
    """The client went away before its answer was complete."""

    code = "client_closed"
    http_status = 499


class RequestAborted(HeadraceError):
    """Whoever operates the engine ended this request; nothing is wrong with the engine."""

    code = "request_aborted"


class UpstreamFailed(HeadraceError):
    """An engine answered wrongly or broke the connection."""

    code = "upstream_failed"
    http_status = 502
    retryable = True


class Unavailable(HeadraceError):
    """Nothing can serve this now: loading, draining, or no ready replica."""

    code = "unavailable"
    http_status = 503
    retryable = True


class DeadlineExceeded(HeadraceError):
    """The request's own deadline, or a timeout on its behalf, passed."""

    code = "deadline_exceeded"
    http_status = 504
    retryable = True


class SetupError(HeadraceError):
    """Something about this machine, its files or its settings; shown without a traceback."""

    code = "setup_error"


class ModelFileError(SetupError):
    """A model file is truncated, contradictory or unsupported; the text names the field."""

    code = "bad_model_file"


class SourceError(SetupError):
    """A model could not be fetched from where its reference points."""

    code = "source_failed"


class DigestMismatch(SourceError):
    """A file was fetched whole and its SHA-256 is not the expected one."""

    code = "digest_mismatch"


class ConfigurationError(SetupError):
    """A setting is wrong, a port is taken, or a directory is in use."""

    code = "bad_configuration"
