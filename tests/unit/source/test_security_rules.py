"""What must hold of the sources themselves, because no run of them would show it.

Each rule is a known way in to systems of this kind: SQL that a caller's text is put into, pickles
from a wire, checks that `python -O` removes, one secret for two purposes, a package that nobody
pinned.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.spec import platform_token
from headrace.spec.api_key_format import hash_secret
from headrace.spec.engine_key import engine_key
from headrace.spec.events import Webhook
from headrace.spec.prefix_key import prefix_cache_key
from headrace.spec.token_format import node_tokens, service_tokens
from headrace.spec.webhook_signature import webhook_secret

root = Path(__file__).parents[3]
sources = root / "src" / "headrace"
unsafe_modules = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "jsonpickle"}
unsafe_calls = {"eval", "exec", "__import__"}
# Where SQL is put together, of names of our own tables, columns, locks and channels alone.
reviewed_sql = {
    ("storage/rows.py", "add_many"),
    ("storage/leadership.py", "acquire"),
    ("storage/leadership.py", "release"),
    ("storage/postgres.py", "begin"),
    ("storage/changes.py", "notify"),
    ("storage/changes.py", "_listen"),
    ("storage/store_time.py", "store_time_s"),
}
# Who decides whether somebody is let in, or where something may be sent.
deciding = [
    "gateway/authenticate.py", "gateway/passed_fields.py", "gateway/app.py", "http/egress.py",
    "control/admin/guard.py", "control/admin/credentials.py", "control/admin/access.py",
    "control/admin/id_token.py", "control/admin/actors.py",
    "spec/api_key_format.py", "spec/token_format.py", "spec/purpose_key.py",
    "spec/engine_key.py",    "spec/platform_token.py", "base/secret_references.py",
]  # fmt: skip


def parsed() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(sources.rglob("*.py")):
        yield path.relative_to(sources).as_posix(), ast.parse(path.read_text())


def functions_around(tree: ast.Module) -> dict[ast.AST, str]:
    """The innermost function that each node stands in, by name."""
    inside: dict[ast.AST, str] = {}
    for node in ast.walk(tree):  # outer ones come first
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            inside.update(dict.fromkeys(ast.walk(node), node.name))
    return inside


def is_constant(node: ast.expr) -> bool:
    """Whether an argument is written where it is used, without anything put into it."""
    if isinstance(node, ast.IfExp):
        return is_constant(node.body) and is_constant(node.orelse)
    return isinstance(node, ast.Constant)


def test_sql_has_nothing_of_a_callers_in_it() -> None:
    found = set()
    for name, tree in parsed():
        inside = functions_around(tree)
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            is_text = called == "text" and name.startswith("storage/")  # SQLAlchemy's
            is_raw = is_text or called == "exec_driver_sql"
            if is_raw and not is_constant(node.args[0]):
                found.add((name, inside.get(node, "")))
    assert found == reviewed_sql, "look whether a caller can reach what is put into the statement"


def test_nothing_is_read_that_runs_while_it_is_read() -> None:
    found = []
    for name, tree in parsed():
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                found += [(name, each.name) for each in node.names if each.name in unsafe_modules]
            elif isinstance(node, ast.ImportFrom) and node.module in unsafe_modules:
                found.append((name, node.module))
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                found += [(name, node.func.id)] if node.func.id in unsafe_calls else []
            elif isinstance(node, ast.keyword) and node.arg in ("trust_remote_code", "shell"):
                found += [] if getattr(node.value, "value", None) is False else [(name, node.arg)]
    assert found == []


@pytest.mark.parametrize("name", deciding)
def test_nobody_is_let_in_by_an_assert(name: str) -> None:
    tree = ast.parse((sources / name).read_text())
    assert not any(isinstance(node, ast.Assert) for node in ast.walk(tree))


def test_each_secret_of_the_pepper_is_for_one_purpose() -> None:
    pepper, secret = bytes(range(32)), "0" * 64
    hook = Webhook(id="whk_1", name="a", create_time=0.0, url="https://a", events=())
    made = [
        hash_secret(pepper, secret),
        service_tokens.digest(pepper, secret),
        node_tokens.digest(pepper, secret),
        bytes.fromhex(platform_token.platform_token(pepper)),
        bytes.fromhex(platform_token.metrics_token(pepper)),
        prefix_cache_key(pepper),
        bytes.fromhex(engine_key(pepper, "rep_1", "0" * 32)),
        webhook_secret(pepper, hook),
    ]
    assert len(set(made)) == len(made)
    purposes: Counter[str] = Counter({service_tokens.purpose: 1, node_tokens.purpose: 1})
    for name, tree in parsed():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "purpose_key":
                purpose = node.args[1]
                if isinstance(purpose, ast.Constant):
                    purposes[str(purpose.value)] += 1
                else:
                    assert name == "spec/token_format.py", "a purpose that is not written out"
    assert set(purposes.values()) == {1}


@pytest.mark.parametrize("name", ["runtime.lock", "dev.lock"])
def test_every_package_is_pinned_with_its_hashes(name: str) -> None:
    joined = (root / "requirements" / name).read_text().replace("\\\n", " ")
    lines = [line.strip() for line in joined.splitlines() if line.strip()]
    pinned = re.compile(r"[A-Za-z0-9._\[\]-]+==\S+( ;[^#]+?)?( +--hash=sha256:[0-9a-f]{64})+")
    assert [line for line in lines if not pinned.fullmatch(line)] == []


def test_nothing_is_installed_whose_hash_is_not_checked() -> None:
    """But for PyTorch, which is an oracle of tests and runs nowhere else."""
    installs = [
        line
        for line in (root / "Makefile").read_text().splitlines()
        if re.search(r"\$\(PIP\)|pip install", line) and not line.startswith("PIP ")
    ]
    assert installs
    for line in installs:
        assert "--require-hashes" in line or "--no-deps" in line or "torch==" in line, line
