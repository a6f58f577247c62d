"""64 threads at one admission: no limit is overrun at any moment, and all of it can be used."""

import threading

from headrace.base.errors import RateLimited
from headrace.ledger.admission import Admission
from headrace.ledger.refusals import settle_retry_s
from headrace.ledger.reservation import Outcome, Reservation, TokenUsage
from headrace.ledger.scopes import ScopeLimits
from headrace.sim.clock import ManualClock
from headrace.spec.limits import Limits
from headrace.spec.prices import Price, PriceVersion

thread_count = 64
input_tokens, output_tokens_max, output_tokens = 10, 30, 20
concurrency = 40
quota = 60_000
price = PriceVersion(
    "prb",
    Price(
        input_nanousd_per_million=1_000_000,
        cached_input_nanousd_per_million=1_000_000,
        output_nanousd_per_million=1_000_000,
    ),
)
limits = ScopeLimits(
    tenant=Limits(budget_nanousd=quota + 10_000),
    project=Limits(tokens_per_period=quota),
    key=Limits(concurrent_requests=concurrency),
)


class Books:
    """What the clients together run and used, by their own count."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.running = 0
        self.running_max = 0
        self.tokens = 0
        self.asked = 0

    def begin(self) -> None:
        with self.lock:
            self.running += 1
            self.running_max = max(self.running_max, self.running)

    def leave(self, tokens: int) -> None:
        with self.lock:
            self.running -= 1
            self.tokens += tokens

    def next_number(self) -> int:
        with self.lock:
            self.asked += 1
            return self.asked


def run_client(admission: Admission, name: str, books: Books) -> None:
    """Take all that it gets, then let it end; until the quota itself is in the way."""
    held: list[Reservation] = []
    while True:
        try:
            held.append(
                admission.reserve(
                    request_id=f"{name}-{books.next_number()}",
                    tenant_id="ten",
                    project_id="prj",
                    key_id="key",
                    model="m",
                    price=price,
                    credit_floor_nanousd=None,
                    prompt_tokens_max=input_tokens,
                    output_tokens_max=output_tokens_max,
                    limits=limits,
                )
            )
            books.begin()
        except RateLimited as refused:
            for reservation in held:
                books.leave(input_tokens + output_tokens)
                usage = TokenUsage(input_tokens, 0, output_tokens)
                admission.settle(reservation, usage, Outcome.FINISHED)
            held = []
            is_quota = refused.fields["limit_name"] == "tokens_per_period"
            if is_quota and refused.retry_after_s != settle_retry_s:
                return


def test_64_threads_never_overrun_a_limit_and_use_nearly_all_of_it() -> None:
    admission = Admission(ManualClock())
    books = Books()
    threads = [
        threading.Thread(target=run_client, args=(admission, f"c{number}", books))
        for number in range(thread_count)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert books.running == 0
    assert books.running_max == concurrency
    assert 0.97 * quota <= books.tokens <= quota
    assert admission.running_count() == 0
