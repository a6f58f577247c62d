"""What the seams of tracing cost a gateway that traces nothing: its code as is, and without them.

In each round two processes serve the same requests in turns. One runs the gateway's modules as
they are; in the other every look at a trace or a tracer was taken out of them before they were
compiled, as if tracing had never been written. Printed are the instructions of the interpreter that
a request takes in each, which no other process can change, and the CPU time, which others do.

    python bench/tracing_off.py [--rounds 9] [--requests 2000]
"""

import argparse
import ast
import asyncio
import importlib.abc
import importlib.machinery
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, FrameType, ModuleType

warm_up_requests = 300
counted_requests = 100  # counting slows them a hundredfold
names = frozenset({"trace", "_trace", "tracer", "_tracer"})


class WithoutTraces(ast.NodeTransformer):
    """Takes the branch that holds where there is no trace, in place of asking."""

    removed = 0

    def visit_If(self, node: ast.If) -> ast.stmt | list[ast.stmt]:
        """`if trace is None:` is its body, `if trace is not None:` what follows `else`."""
        self.generic_visit(node)
        is_none = asks_for_none(node.test)
        if is_none is None:
            return node
        WithoutTraces.removed += 1
        return (node.body if is_none else node.orelse) or ast.copy_location(ast.Pass(), node)

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        """The same of an expression."""
        self.generic_visit(node)
        is_none = asks_for_none(node.test)
        if is_none is None:
            return node
        WithoutTraces.removed += 1
        return node.body if is_none else node.orelse


def asks_for_none(test: ast.expr) -> bool | None:
    """Whether a test holds without a trace; None: it is of something else."""
    if not isinstance(test, ast.Compare) or len(test.ops) != 1:
        return None
    name = test.left.attr if isinstance(test.left, ast.Attribute) else getattr(test.left, "id", "")
    if name not in names or not isinstance(test.ops[0], ast.Is | ast.IsNot):
        return None
    return isinstance(test.ops[0], ast.Is)


class Loader(SourceFileLoader):
    """Compiles a module without its looks at traces; never from or to a cache."""

    def get_code(self, fullname: str) -> CodeType:
        """The module's code."""
        tree = WithoutTraces().visit(ast.parse(self.get_data(self.path)))
        return compile(ast.fix_missing_locations(tree), self.path, "exec")


class Finder(importlib.abc.MetaPathFinder):
    """Finds the gateway's modules before anybody else."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """A spec with our loader."""
        if not fullname.startswith("headrace.gateway."):
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is not None and spec.origin is not None:
            spec.loader = Loader(fullname, spec.origin)
        return spec


class Counter:
    """Counts the interpreter's instructions in this thread while it is on."""

    count = 0

    def __call__(self, frame: FrameType, event: str, _: object) -> "Counter":
        """One event of `sys.settrace`."""
        frame.f_trace_opcodes = True
        self.count += event == "opcode"
        return self


async def serve(requests: int) -> tuple[float, float]:
    """CPU microseconds and instructions of a request: the gateway, a fake engine, a reader."""
    from headrace.sim.engine import FakeEngine  # noqa: PLC0415 -- after the finder is in place
    from headrace.sim.gateway_site import gateway_site, model_name  # noqa: PLC0415

    body = json.dumps(
        {"model": model_name, "stream": True, "messages": [{"role": "user", "content": "Hello!"}]}
    ).encode()
    with tempfile.TemporaryDirectory() as directory:
        async with gateway_site(Path(directory), [FakeEngine()]) as site:
            headers = [
                (b"authorization", f"Bearer {site.api_key}".encode()),
                (b"content-type", b"application/json"),
            ]
            scope = {
                "type": "http", "method": "POST", "path": "/v1/chat/completions",
                "headers": headers, "client": ("127.0.0.1", 1), "query_string": b"",
            }  # fmt: skip

            async def ask(count: int) -> None:
                for _ in range(count):
                    sent = iter([{"type": "http.request", "body": body, "more_body": False}])
                    gone = asyncio.get_running_loop().create_future()

                    async def receive(sent=sent, gone=gone):  # type: ignore[no-untyped-def]
                        return next(sent, None) or await gone

                    statuses: list[int] = []

                    async def send(message, statuses=statuses):  # type: ignore[no-untyped-def]
                        if message["type"] == "http.response.start":
                            statuses.append(message["status"])

                    await site.gateway.app(dict(scope), receive, send)
                    assert statuses == [200]

            await ask(warm_up_requests)
            started_s = time.process_time()
            await ask(requests)
            cpu_us = (time.process_time() - started_s) / requests * 1e6
            counter = Counter()
            sys.settrace(counter)
            await ask(counted_requests)
            sys.settrace(None)
            return cpu_us, counter.count / counted_requests


def measured(kind: str, requests: int) -> tuple[float, float]:
    """One process's answer."""
    answer = subprocess.run(
        [sys.executable, __file__, "--one", kind, "--requests", str(requests)],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    cpu_us, instructions = map(float, answer.stdout.split())
    return cpu_us, instructions


def main() -> None:
    """Measure in turns; the order changes each round."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--one", choices=("with", "without"))
    asked = parser.parse_args()
    if asked.one:
        if asked.one == "without":
            sys.meta_path.insert(0, Finder())
        results = asyncio.run(serve(asked.requests))
        assert asked.one == "with" or WithoutTraces.removed > 0, "nothing was taken out"
        print(*results)
        return
    found: dict[str, list[tuple[float, float]]] = {"with": [], "without": []}
    for number in range(asked.rounds):
        for kind in ("with", "without") if number % 2 else ("without", "with"):
            found[kind].append(measured(kind, asked.requests))
    for index, name in enumerate(("CPU microseconds", "instructions")):
        one, other = ([each[index] for each in found[kind]] for kind in ("with", "without"))
        ratios = [a / b for a, b in zip(one, other, strict=True)]
        print(f"{name}: {statistics.median(one):,.1f} with the seams, "
              f"{statistics.median(other):,.1f} without; ratio {statistics.median(ratios):.4f} "
              f"({min(ratios):.4f} to {max(ratios):.4f})", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
