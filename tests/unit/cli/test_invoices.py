"""`headrace invoices` against a real admin API: from the seller's name to a credit note."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.spec.settlements import Charge, Outcome, Settlement, TokenUsage, UsageSource
from headrace.spec.tenancy import Tenant

from .conftest import RunningPlatform

Run = Callable[..., int]
january_s = 1_798_800_000.0  # 2027-01-01, a day that is over on the platform's clock
usd = 1_000_000_000
days = ("--first-day", "2027-01-01", "--last-day", "2027-01-14")
seller_file = """
name: Compute GmbH
address: [Mühlenweg 3, 10115 Berlin]
country: DE
taxes:
  - {name: VAT, percent: 19, countries: [DE], without_tax_id_only: true}
"""


def use(platform: RunningPlatform, request_id: str, *, rated: bool = True) -> None:
    tenant = platform.database.store.find(Tenant, "acme")
    assert tenant is not None
    settlement = Settlement(
        request_id=request_id,
        tenant_id=tenant.id,
        project_id="prj",
        key_id="key",
        model="small",
        usage=TokenUsage(prompt_tokens=10, completion_tokens=1000),
        outcome=Outcome.FINISHED,
        source=UsageSource.ENGINE,
        price_book_id="prb" if rated else None,
        charge=Charge(input_nanousd=5, output_nanousd=2 * usd) if rated else None,
        settle_time=january_s,
    )
    platform.database.ledger.post([settlement])


@pytest.fixture
def ask(run: Run, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Run a command with --json and return what it wrote."""

    def run_and_parse(*arguments: str) -> Any:
        assert run(*arguments, "--json") == 0
        return json.loads(capsys.readouterr().out)

    return run_and_parse


@pytest.fixture
def seller(platform: RunningPlatform, ask: Callable[..., Any], tmp_path: Path) -> None:
    """A seller, and a postpaid tenant whose invoices have an address."""
    (tmp_path / "seller.yaml").write_text(seller_file)
    (tmp_path / "acme.json").write_text('{"name": "Acme AG", "country": "DE"}')
    ask("tenants", "create", "acme", "--postpaid")
    ask("invoices", "seller", "-f", str(tmp_path / "seller.yaml"))
    ask("invoices", "profile", "acme", "-f", str(tmp_path / "acme.json"))


@pytest.mark.usefixtures("seller")
def test_from_usage_to_a_credit_note(
    platform: RunningPlatform, ask: Callable[..., Any], run: Run, tmp_path: Path
) -> None:
    use(platform, "r1")
    [draft] = ask("invoices", "draft", "--tenant", "acme", *days)["items"]
    assert draft["lines"][1]["amount"]["nanousd"] == 2 * usd
    [again] = ask("invoices", "draft", *days)["items"]
    assert again == draft

    use(platform, "r2")  # late, and still in the final invoice
    final = ask("invoices", "finalize", draft["id"])
    assert (final["number"], final["due_day"]) == ("INV-000001", "2027-01-29")
    assert final["total"]["usd"] == "4.76"
    assert [item["number"] for item in ask("invoices", "list")["items"]] == ["INV-000001"]

    page, document = tmp_path / "january.html", tmp_path / "january.pdf"
    chosen = ("--tenant", "acme", "--month", "2027-01")
    assert run("invoices", "show", *chosen, "--out", str(page)) == 0
    assert run("invoices", "show", "INV-000001", "--out", str(document)) == 0
    assert "Acme AG" in page.read_text()
    assert document.read_bytes().startswith(b"%PDF-")

    note = ask("invoices", "credit", "INV-000001", "1.00", "--reason", "an outage")
    assert (note["number"], note["total"]["usd"]) == ("CN-000001", "1.19")
    assert len(ask("invoices", "notes", "INV-000001", "--out", str(tmp_path))["items"]) == 1
    assert "an outage" in (tmp_path / "CN-000001.html").read_text()
    assert ask("tenants", "show", "acme")["balance"]["nanousd"] == -3 * usd - 10

    transfer = ("payments", "record", "INV-000001", "--reference", "DE-77")
    part = ask(*transfer, "--amount", "1.19")
    assert (part["amount"], part["credit"]["usd"]) == ("1.19", "1.00")
    assert ask(*transfer, "--amount", "1.19") == part
    assert ask("invoices", "show", "INV-000001")["standing"]["open"] == "2.38"
    rest = ask("payments", "record", "INV-000001", "--reference", "DE-78", "--amount", "3.38")
    assert rest["overpaid"]["usd"] == "1.00"
    assert ask("tenants", "show", "acme")["balance"]["nanousd"] == usd - 10
    ask("payments", "reverse", rest["id"], "--reason", "not theirs")
    assert ask("invoices", "list")["items"][0]["standing"]["state"] == "partly paid"
    kept = ask("payments", "list", "--invoice", "INV-000001")["items"]
    states = {each["id"]: each["state"] for each in kept}
    assert states == {part["id"]: "succeeded", rest["id"]: "reversed"}
    booked = ask("wallets", "entries", "acme")["items"]
    amounts = sorted(entry["amount"]["usd"] for entry in booked)
    assert amounts == ["-3.00", "1.00", "1.00", "1.00", "2.00"]
    assert run("payments", "record", "INV-000001", "--reference", "x", "--amount", "0.001") == 1
    assert platform.database.ledger.check() == []


@pytest.mark.usefixtures("seller")
def test_terms_and_the_buyers_currency_are_on_the_invoice_and_in_the_books(
    platform: RunningPlatform, ask: Callable[..., Any], run: Run, tmp_path: Path
) -> None:
    use(platform, "r1")
    (tmp_path / "terms.yaml").write_text("discount_percent: 50")
    ask("invoices", "terms", "acme", "-f", str(tmp_path / "terms.yaml"))
    (tmp_path / "seller.yaml").write_text(seller_file + "exchange_rates: {EUR: 0.9}")
    (tmp_path / "acme.json").write_text('{"name": "Acme AG", "country": "DE", "currency": "EUR"}')
    ask("invoices", "seller", "-f", str(tmp_path / "seller.yaml"))
    ask("invoices", "profile", "acme", "-f", str(tmp_path / "acme.json"))
    [longer] = ask("invoices", "draft", *days)["items"]
    [draft] = ask("invoices", "draft", *days[:3], "2027-01-02")["items"]
    assert [item["id"] for item in ask("invoices", "list")["items"]] == [draft["id"]], longer
    assert [each["percent"] for each in draft["adjustments"]] == [50]
    final = ask("invoices", "finalize", draft["id"])
    assert (final["total"]["usd"], final["payable"]["due"]) == ("1.19", "1.07")
    assert ask("tenants", "show", "acme")["balance"]["nanousd"] == -usd - 3
    assert platform.database.ledger.check() == []
    for name in ("january.html", "january.pdf"):
        assert run("invoices", "show", "INV-000001", "--out", str(tmp_path / name)) == 0
    page = (tmp_path / "january.html").read_text()
    assert "Discount (50%)" in page
    assert "1.07 EUR" in page
    assert run("invoices", "terms", "acme", "--drop") == 0
    assert run("invoices", "terms", "acme") == 1


@pytest.mark.usefixtures("seller")
def test_what_has_no_price_is_not_forgotten(
    platform: RunningPlatform, ask: Callable[..., Any], run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    use(platform, "r1", rated=False)
    [draft] = ask("invoices", "draft", *days)["items"]
    assert run("invoices", "finalize", draft["id"]) == 1
    assert "1 requests of this period used models without a price" in capsys.readouterr().err
    anyway = ("invoices", "finalize", draft["id"], "--allow-unrated", "--allow-zero")
    assert ask(*anyway)["total"]["nanousd"] == 0


@pytest.mark.usefixtures("seller")
def test_an_invoice_of_nothing_takes_no_number_unless_somebody_wants_it(
    platform: RunningPlatform, ask: Callable[..., Any], run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    [nothing] = ask("invoices", "draft", "--month", "2026-12")["items"]
    assert run("invoices", "finalize", nothing["id"]) == 1
    assert "--allow-zero" in capsys.readouterr().err
    use(platform, "r1")
    [draft] = ask("invoices", "draft", *days)["items"]
    assert ask("invoices", "finalize", draft["id"])["number"].endswith("-000001")
    wanted = ask("invoices", "finalize", nothing["id"], "--allow-zero")
    assert wanted["number"].endswith("-000002")
    assert (wanted["total"]["nanousd"], wanted["standing"]["state"]) == (0, "paid")


@pytest.mark.usefixtures("seller")
def test_an_invoice_that_a_discount_makes_nothing_is_numbered_and_booked(
    platform: RunningPlatform, ask: Callable[..., Any], tmp_path: Path
) -> None:
    use(platform, "r1")
    terms = tmp_path / "terms.yaml"
    terms.write_text("discount_percent: 100\n")
    ask("invoices", "terms", "acme", "-f", str(terms))
    [draft] = ask("invoices", "draft", *days)["items"]
    final = ask("invoices", "finalize", draft["id"])
    assert (final["total"]["nanousd"], final["number"] is None) == (0, False)
    assert platform.database.ledger.check() == []


@pytest.mark.usefixtures("seller")
def test_prices_are_tried_then_applied_to_what_waited(
    platform: RunningPlatform, ask: Callable[..., Any], run: Run, tmp_path: Path
) -> None:
    use(platform, "r1", rated=False)
    use(platform, "r2")
    book = tmp_path / "prices.json"
    book.write_text(
        '{"prices": {"small": {"input_usd_per_million": "0", "output_usd_per_million": "1000"}}}'
    )
    trial = ask("prices", "try", "-f", str(book), *days)
    assert trial["charged"]["nanousd"] == 2 * usd + 5
    assert trial["tried"]["nanousd"] == 2 * usd
    assert ask("prices", "rate", *days) == {"rated_requests": 0}  # trying applied nothing
    ask("prices", "apply", "-f", str(book))
    assert ask("prices", "rate", *days) == {"rated_requests": 1}
    [draft] = ask("invoices", "draft", *days)["items"]
    assert (draft["unrated_requests"], draft["subtotal"]["nanousd"]) == (0, 3 * usd + 5)
    assert platform.database.ledger.check() == []
    ask("invoices", "finalize", draft["id"])
    assert run("prices", "rate", *days) == 1


@pytest.mark.usefixtures("seller")
def test_usage_is_written_for_other_systems(
    platform: RunningPlatform, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    use(platform, "r1")
    rows, events = tmp_path / "january.csv", tmp_path / "january.jsonl"
    assert run("invoices", "export", "--month", "2027-01", "--out", str(rows)) == 0
    assert "Compute GmbH" in rows.read_text()
    asked = ("--month", "2027-01", "--format", "cloudevents", "--tenant", "acme")
    assert run("invoices", "export", *asked, "--out", str(events)) == 0
    assert json.loads(events.read_text())["id"] == "r1"
    assert run("invoices", "export", "--month", "never", "--out", str(rows)) == 1
    assert "month" in capsys.readouterr().err


@pytest.mark.usefixtures("seller")
def test_a_period_that_is_not_over_stays_a_draft(
    ask: Callable[..., Any], run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    [draft] = ask("invoices", "draft", "--month", "2027-01")["items"]
    assert run("invoices", "finalize", draft["id"]) == 1
    assert "is not over in UTC" in capsys.readouterr().err


@pytest.mark.usefixtures("platform")
def test_without_a_seller_the_error_says_what_to_do(
    ask: Callable[..., Any], run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    ask("tenants", "create", "acme")
    assert run("invoices", "draft", "--month", "2027-01") == 1
    assert "headrace invoices seller -f FILE" in capsys.readouterr().err
    assert run("invoices", "draft") == 1
    assert "give `month`, or both" in capsys.readouterr().err
