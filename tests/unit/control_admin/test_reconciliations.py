"""The stored hours over the admin API, and by the command that reads the same store."""

from pathlib import Path

import msgspec
from starlette.testclient import TestClient
from typer.testing import CliRunner

from headrace.cli.main import build_app
from headrace.control.hourly_reconciliation import encode_rows
from headrace.ledger.reconciliation import Reconciled, ReportRow
from headrace.storage import Database
from headrace.storage.reconciliation_reports import StoredReport

hour_s = 3600.0
compared = Reconciled(
    replica_id="rep_1",
    since=0.0,
    until=hour_s,
    engine_prompt_tokens=9,
    engine_completion_tokens=4,
    billed_prompt_tokens=9,
    billed_completion_tokens=1,
    requests=2,
    reasons=[],
)


def fill(database: Database) -> None:
    for number, row in enumerate(
        (compared, msgspec.structs.replace(compared, reasons=["the engine started anew"]))
    ):
        database.reconciliations.keep(
            StoredReport(
                begin_time=number * hour_s,
                end_time=(number + 1) * hour_s,
                make_time=(number + 2) * hour_s,
                difference_tokens=3,
                unexplained_tokens=0 if row.reasons else 3,
                body=encode_rows([ReportRow(engine="vllm", model="small", compared=row)]),
            ),
            forget_before=0.0,
        )


def test_hours_are_listed_and_one_is_shown_with_its_engines_and_reasons(
    admin: TestClient, database: Database
) -> None:
    assert admin.get("/reconciliations").json() == {"items": []}
    fill(database)
    items = admin.get("/reconciliations").json()["items"]
    assert [item["begin_time"] for item in items] == [
        "1970-01-01T01:00:00Z",
        "1970-01-01T00:00:00Z",
    ]
    assert [item["unexplained_tokens"] for item in items] == [0, 3]
    assert len(admin.get("/reconciliations?limit=1").json()["items"]) == 1
    shown = admin.get("/reconciliations/at?time=1970-01-01T01:20:00Z").json()
    (row,) = shown["items"]
    assert (row["engine"], row["model"], row["difference_tokens"]) == ("vllm", "small", 3)
    assert row["reasons"] == ["the engine started anew"]
    assert admin.get("/reconciliations/at?time=1970-01-02T00:00:00Z").status_code == 404


def test_the_command_lists_and_shows_them(database: Database, tmp_path: Path) -> None:
    fill(database)

    def run(*arguments: str) -> tuple[int, str]:
        words = ["reconcile", "--data-dir", str(tmp_path), *arguments]
        result = CliRunner().invoke(build_app(words), words)
        return result.exit_code, result.output

    status, said = run("--list")
    assert (status, "1970-01-01 01:00" in said) == (0, True)
    assert [
        each["unexplained_tokens"]
        for each in msgspec.json.decode(run("--list", "--json")[1])["items"]
    ] == [0, 3]
    status, said = run("--show", "1970-01-01T00:30:00Z", "--json")
    assert status == 1  # nothing explains it
    assert msgspec.json.decode(said)["items"][0]["engine"] == "vllm"
    status, said = run("--show", "1970-01-01T01:30:00Z")
    assert status == 0
    head, row, *_ = (line.split() for line in said.splitlines())
    assert dict(zip(head, row, strict=True)) == {
        "REPLICA": compared.replica_id,
        "KIND": "vllm",
        "MODEL": "small",
        "REQUESTS": "2",
        "ENGINE": "13",
        "BILLED": "10",
        "DIFFERENCE": "3",
    }
    assert run("--show", "1970-02-01")[0] != 0
