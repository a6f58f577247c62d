"""What a backup holds comes back, and nothing is written over."""

import tarfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from headrace.base.errors import ConfigurationError, SetupError
from headrace.ledger.journal import Journal
from headrace.spec.settlements import Settlement
from headrace.spec.tenancy import Tenant
from headrace.storage import open_database
from headrace.storage.backup import read_backup, write_backup

Make = Callable[..., Settlement]


def fill(data_dir: Path, url: str | None, settlement: Make) -> None:
    """A platform with a tenant, a settlement, a journal and a secret."""
    data_dir.mkdir(exist_ok=True)
    (data_dir / "pepper").write_bytes(b"p" * 32)
    Journal(data_dir / "journal").close()
    (data_dir / "logs").mkdir()
    with closing(open_database(data_dir / "headrace.db", url)) as database:
        database.store.create(Tenant(id="ten_a", name="acme", create_time=0.0))
        database.ledger.credit("ten_a", 1_000, "first", "paid")
        database.ledger.post([settlement("r1")], journal_id="j", sequence=7)


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_platform_comes_back_whole(
    request: pytest.FixtureRequest, tmp_path: Path, settlement: Make, kind: str
) -> None:
    make_url: Callable[[], str] | None = None
    if kind == "postgres":
        make_url = request.getfixturevalue("new_postgres_url")
    url = make_url and make_url()
    fill(tmp_path / "old", url, settlement)
    write_backup(tmp_path / "old", tmp_path / "file.backup", 5.0, url)
    assert (tmp_path / "file.backup").stat().st_mode & 0o777 == 0o600
    new_url = request.getfixturevalue("empty_postgres_url") if url else None
    assert read_backup(tmp_path / "file.backup", tmp_path / "new", new_url) == []
    with closing(open_database(tmp_path / "new" / "headrace.db", new_url)) as database:
        assert [tenant.name for tenant in database.store.list(Tenant)] == ["acme"]
        assert database.ledger.snapshot().sequences == {"j": 7}
        assert database.ledger.balances() == {"ten_a": 900}
        assert database.ledger.post([settlement("r1")]) == 0
    assert (tmp_path / "new" / "pepper").read_bytes() == b"p" * 32
    old, new = (
        sorted(path.name for path in (tmp_path / name / "journal").iterdir())
        for name in ("old", "new")
    )
    assert old == new
    assert not (tmp_path / "new" / "logs").exists()


def test_nothing_is_written_over(tmp_path: Path, settlement: Make) -> None:
    fill(tmp_path / "old", None, settlement)
    write_backup(tmp_path / "old", tmp_path / "file.backup", 5.0)
    with pytest.raises(ConfigurationError, match="exists"):
        write_backup(tmp_path / "old", tmp_path / "file.backup", 6.0)
    with pytest.raises(ConfigurationError, match="not empty"):
        read_backup(tmp_path / "file.backup", tmp_path / "old")


def test_a_directory_without_a_platform_is_not_backed_up(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no database"):
        write_backup(tmp_path, tmp_path / "file.backup", 5.0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"not a backup", b"\0" * 10_240])
def test_a_damaged_file_is_refused_and_leaves_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file.backup").write_bytes(content)
    with pytest.raises(SetupError, match="no backup"):
        read_backup(tmp_path / "file.backup", tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_name_that_leads_out_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "evil").write_bytes(b"")
    with tarfile.open(tmp_path / "file.backup", "w") as tar:
        tar.add(tmp_path / "evil", "../evil-copy")
    with pytest.raises(SetupError, match="no backup"):
        read_backup(tmp_path / "file.backup", tmp_path / "new")


def test_the_kind_of_database_must_be_the_same(tmp_path: Path, settlement: Make) -> None:
    fill(tmp_path / "old", None, settlement)
    write_backup(tmp_path / "old", tmp_path / "file.backup", 5.0)
    with pytest.raises(ConfigurationError, match="leave --database-url out"):
        read_backup(tmp_path / "file.backup", tmp_path / "new", "postgresql://a@b/c")
