"""A server on loopback that speaks the part of Stripe's documented API that headrace uses.

Payment intents and refunds, form-encoded requests, JSON answers and errors, idempotency keys. What
a customer's payments come to is said by its id: `cus_declined`, `cus_slow`, anything else.
"""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs

Json = dict[str, object]


class StripeServer:
    """What was charged and refunded."""

    def __init__(self) -> None:
        self.api_key = "sk_test_1"
        self.intents: dict[str, Json] = {}
        self.refunds: dict[str, Json] = {}
        self.answers: dict[str, tuple[int, Json]] = {}  # by idempotency key
        self.fail_next = 0  # so many requests are carried out and then answered with 500
        self.url = ""

    def post(self, path: str, fields: dict[str, str], key: str) -> tuple[int, Json]:
        """Carry out a request once for its idempotency key."""
        if key not in self.answers:
            make = {"/v1/payment_intents": self._charge, "/v1/refunds": self._refund}.get(path)
            if make is None:
                return 404, error("invalid_request_error", "resource_missing")
            self.answers[key] = make(fields)
        if self.fail_next:
            self.fail_next -= 1
            return 500, error("api_error", "")
        return self.answers[key]

    def get(self, path: str) -> tuple[int, Json]:
        """Answer what an intent or a refund has come to; the slow ones have succeeded by now."""
        kind, _, name = path.removeprefix("/v1/").partition("/")
        found = {"payment_intents": self.intents, "refunds": self.refunds}.get(kind, {}).get(name)
        if found is None:
            return 404, error("invalid_request_error", "resource_missing")
        answer = dict(found)
        found["status"] = "succeeded"
        return 200, answer

    def _charge(self, fields: dict[str, str]) -> tuple[int, Json]:
        if fields.get("confirm") != "true" or fields.get("off_session") != "true":
            return 400, error("invalid_request_error", "parameter_missing")
        if fields["customer"] == "cus_declined":
            return 402, error("card_error", "card_declined")
        intent: Json = {
            "id": f"pi_{len(self.intents) + 1}",
            "object": "payment_intent",
            "amount": int(fields["amount"]),
            "currency": fields["currency"],
            "customer": fields["customer"],
            "status": "processing" if fields["customer"] == "cus_slow" else "succeeded",
        }
        self.intents[str(intent["id"])] = intent
        return 200, dict(intent)

    def _refund(self, fields: dict[str, str]) -> tuple[int, Json]:
        intent = self.intents[fields["payment_intent"]]
        amount = int(fields["amount"])
        left = intent["amount"]
        assert isinstance(left, int)
        if amount > left:
            return 400, error("invalid_request_error", "charge_already_refunded")
        intent["amount"] = left - amount
        refund: Json = {
            "id": f"re_{len(self.refunds) + 1}",
            "object": "refund",
            "amount": amount,
            "payment_intent": intent["id"],
            "status": "succeeded",
        }
        self.refunds[str(refund["id"])] = refund
        return 200, dict(refund)


def error(kind: str, code: str) -> Json:
    """An error in Stripe's shape."""
    return {"error": {"type": kind, "code": code, "message": f"test: {code or kind}"}}


@contextmanager
def running_stripe() -> Iterator[StripeServer]:
    """The server on a free port of loopback, until the end of the block."""
    stripe = StripeServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            fields = {name: values[-1] for name, values in parse_qs(body).items()}
            key = self.headers["Idempotency-Key"]
            self._answer(*(self._refused() or stripe.post(self.path, fields, key)))

        def do_GET(self) -> None:
            self._answer(*(self._refused() or stripe.get(self.path)))

        def _refused(self) -> tuple[int, Json] | None:
            if self.headers["Authorization"] == f"Bearer {stripe.api_key}":
                return None
            return 401, error("invalid_request_error", "")

        def _answer(self, status: int, answer: Json) -> None:
            content = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name there
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    stripe.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield stripe
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
