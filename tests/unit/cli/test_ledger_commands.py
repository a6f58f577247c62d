"""`ledger check`, `reconcile`, `backup` and `restore` as an operator calls them."""

import json
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from headrace.cli.main import main
from headrace.spec.settlements import (
    Charge,
    Outcome,
    Settlement,
    TokenUsage,
    UsageSource,
)
from headrace.storage import open_sqlite
from headrace.storage.engine_samples import EngineSample

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: str, data_dir: str = "data") -> tuple[int, str]:
        try:
            status = main([*arguments, "--data-dir", str(tmp_path / data_dir)])
        except SystemExit as ended:
            status = int(ended.code or 0)
        written = capsys.readouterr()
        return status, written.out + written.err

    return call


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    directory = tmp_path / "data"
    directory.mkdir()
    now_s = time.time()
    settlement = Settlement(
        request_id="r1",
        tenant_id="ten_a",
        project_id="prj_a",
        key_id="key_a",
        model="m",
        usage=TokenUsage(10, 0, 5),
        outcome=Outcome.FINISHED,
        source=UsageSource.ENGINE,
        price_book_id="prb_a",
        charge=Charge(input_nanousd=10),
        settle_time=now_s - 60.0,
        replica_id="rep_a",
    )
    with closing(open_sqlite(directory / "headrace.db")) as database:
        database.ledger.post([settlement])
        for age_s, prompt, completion in ((120.0, 100, 20), (10.0, 110, 25)):
            sample = EngineSample(
                replica_id="rep_a",
                sample_time=now_s - age_s,
                generation="1",
                prompt_tokens=prompt,
                completion_tokens=completion,
                running_requests=0,
            )
            database.engine_samples.add([sample])
    return directory


def tamper(data_dir: Path, statement: str) -> None:
    with (
        closing(open_sqlite(data_dir / "headrace.db")) as database,
        database._sessions.write() as connection,
    ):
        connection.exec_driver_sql(statement)


@pytest.mark.usefixtures("data_dir")
def test_a_sound_book_is_said_to_be_so(run: Run) -> None:
    assert run("ledger", "check") == (0, "1 settlements; the book is sound\n")


def test_a_broken_book_is_named_and_fails(run: Run, data_dir: Path) -> None:
    tamper(data_dir, "UPDATE accounts SET debits_nanousd = debits_nanousd + 1")
    status, text = run("ledger", "check", "--json")
    assert status == 1
    assert "totals differ" in json.loads(text)["problems"][0]


def test_no_database_is_made_by_looking_for_one(run: Run, tmp_path: Path) -> None:
    for command in (("ledger", "check"), ("reconcile",), ("backup", str(tmp_path / "file"))):
        status, text = run(*command, data_dir="nowhere")
        assert status == 1
        assert "has no database" in text
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.usefixtures("data_dir")
def test_equal_counts_reconcile(run: Run) -> None:
    status, text = run("reconcile", "--json")
    (item,) = json.loads(text)["items"]
    assert status == 0
    assert (item["replica_id"], item["difference"], item["requests"]) == ("rep_a", 0, 1)


def test_a_difference_without_a_reason_fails(run: Run, data_dir: Path) -> None:
    tamper(data_dir, "UPDATE engine_samples SET prompt_tokens = 999 WHERE prompt_tokens = 110")
    status, text = run("reconcile")
    assert status == 1
    assert "the difference has no known reason" in text


@pytest.mark.usefixtures("data_dir")
def test_a_backup_is_restored(run: Run, tmp_path: Path) -> None:
    file = str(tmp_path / "file.backup")
    assert run("backup", file)[0] == 0
    assert run("restore", file, data_dir="new")[0] == 0
    assert run("ledger", "check", data_dir="new")[0] == 0
