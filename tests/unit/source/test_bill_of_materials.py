"""A release says what it is made of, and how it was made, in documents that others can read."""

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

root = Path(__file__).parents[3]
about = """Metadata-Version: 2.4
Name: headrace
Version: 0.1.0
Summary: Tokens as a service.
License-Expression: Apache-2.0
"""


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    path = tmp_path / "headrace-0.1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("headrace-0.1.0.dist-info/METADATA", about)
    return path


def run(script: Path, *words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", str(script), *map(str, words)],
        capture_output=True,
        text=True,
        env={**os.environ, "SOURCE_DATE_EPOCH": "1790000000"},
        check=False,
    )


def bill(wheel: Path) -> str:
    done = run(root / "tools/bill_of_materials.py", wheel)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_names_every_package_with_its_hashes(wheel: Path) -> None:
    document: dict[str, Any] = json.loads(bill(wheel))
    locked = (root / "requirements/runtime.lock").read_text().replace("\\\n", " ")
    wanted = {}
    for line in locked.splitlines():
        name, _, rest = line.partition("==")
        key = re.sub(r"[-_.]+", "-", name.partition("[")[0]).lower(), rest.split()[0].rstrip(";")
        wanted[key] = set(re.findall(r"[0-9a-f]{64}", rest))
    found = {
        (each["name"], each["version"]): {digest["content"] for digest in each["hashes"]}
        for each in document["components"]
    }
    assert found == wanted
    assert len(found) > 60
    required = {e["name"] for e in document["components"] if e["scope"] == "required"}
    assert {"numpy", "nanobind", "msgspec"} <= required
    assert not {"cmake", "ninja"} & required
    (product,) = (e for e in document["dependencies"] if e["ref"].startswith("pkg:pypi/headrace@"))
    assert any(ref.startswith("pkg:pypi/uvicorn@") for ref in product["dependsOn"])
    licensed = [each for each in document["components"] if each.get("licenses")]
    assert len(licensed) > len(found) // 2


def test_it_is_a_document_of_its_format_and_the_same_each_time(wheel: Path) -> None:
    text = bill(wheel)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    assert bill(wheel) == text
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("headrace/more.py", "")
    other = bill(wheel)
    assert json.loads(other)["serialNumber"] != json.loads(text)["serialNumber"]


class Sources:
    """A repository with the tools, committed, and a key."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "sources"
        for name in ("tools/provenance.py", "pyproject.toml", "Makefile"):
            (self.path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(root / name, self.path / name)
        shutil.copytree(root / "requirements", self.path / "requirements")
        self.git("init", "--quiet")
        self.git("add", ".")
        self.git("-c", "user.name=a", "-c", "user.email=a@example", "commit", "-qm", "all")
        key = Ed25519PrivateKey.generate()
        self.key, self.public = directory / "key.pem", directory / "key.pub"
        self.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        public = key.public_key()
        self.public.write_bytes(
            public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        )

    def git(self, *words: str) -> str:
        done = subprocess.run(
            ["git", *words], cwd=self.path, check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    def provenance(self, *words: object) -> subprocess.CompletedProcess[str]:
        return run(self.path / "tools/provenance.py", *words)


def test_a_signed_statement_holds_for_its_files_and_no_others(tmp_path: Path, wheel: Path) -> None:
    sources, statement = Sources(tmp_path), tmp_path / "provenance.json"
    made = sources.provenance("make", wheel, "--key", sources.key)
    assert made.returncode == 0, made.stderr
    statement.write_text(made.stdout)
    check = ("check", statement, wheel, "--public-key", sources.public)
    good = sources.provenance(*check)
    assert good.returncode == 0, good.stderr
    assert sources.git("rev-parse", "HEAD") in good.stdout

    tampered = json.loads(made.stdout)
    tampered["payload"] = "e30="  # {}
    statement.write_text(json.dumps(tampered))
    assert "no signature is of this key" in sources.provenance(*check).stderr

    statement.write_text(made.stdout)
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("headrace/evil.pth", "import os")
    assert "is not the file that the statement names" in sources.provenance(*check).stderr


def test_nobody_vouches_for_what_is_unsigned_or_of_no_commit(tmp_path: Path, wheel: Path) -> None:
    sources, statement = Sources(tmp_path), tmp_path / "provenance.json"
    unsigned = sources.provenance("make", wheel)
    said = json.loads(unsigned.stdout)
    assert said["predicateType"] == "https://slsa.dev/provenance/v1"
    assert [each["name"] for each in said["subject"]] == [wheel.name]
    statement.write_text(unsigned.stdout)
    checked = sources.provenance("check", statement, wheel, "--public-key", sources.public)
    assert checked.returncode == 1
    assert "is not signed" in checked.stderr

    (sources.path / "Makefile").write_text("all:\n")
    assert "differ from the commit" in sources.provenance("make", wheel).stderr
