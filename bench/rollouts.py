"""Does a rollout cost a request? Many of them, for real, under load. Exit status 1 if one does.

    python bench/rollouts.py [--rollouts 100] [--clients 3] [--strategies rolling,blue-green,canary]

A whole platform (`headrace up --demo`) with real engines. Clients send one request after the other,
a third of them streamed, while the deployment is changed again and again: each change is a new
generation, so every replica is replaced. The strategies take turns. A request failed if its client
saw anything but a whole answer; clients retry nothing.
"""

import argparse
import json
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import openai

from headrace.cli.admin_client import AdminAddress, AdminClient
from headrace.sim.child_process import wait_until
from headrace.sim.platform_process import PlatformProcess

model = "smollm2-135m-instruct"
output_tokens = 8
policies: dict[str, dict[str, object]] = {
    "rolling": {"strategy": "rolling"},
    "blue-green": {"strategy": "blue-green", "bake_s": 0.5},
    "canary": {"strategy": "canary", "steps": [{"weight": 50, "pause_s": 0.5}]},
}


class Rollout(msgspec.Struct):
    """What is read of a rollout's state."""

    state: str
    last_generation: int | None
    last_succeeded: bool | None
    last_reason: str | None


class Changed(msgspec.Struct):
    """What is read of a changed deployment."""

    generation: int


@dataclass
class Client:
    """Requests one after the other until told to stop."""

    platform: PlatformProcess
    stop: threading.Event
    answered: int = 0
    streamed: int = 0
    failures: list[str] = field(default_factory=list)

    def run(self) -> None:
        """Ask on; a connection of its own."""
        with openai.OpenAI(
            base_url=f"{self.platform.gateway_url}/v1",
            api_key=self.platform.api_key,
            max_retries=0,
        ) as client:
            number = 0
            while not self.stop.is_set():
                number += 1
                try:
                    self.stream(client) if number % 3 == 0 else self.ask(client)
                except openai.OpenAIError as error:
                    self.fail(f"{type(error).__name__}: {error}")

    def ask(self, client: openai.OpenAI) -> None:
        """One whole answer."""
        client.completions.create(model=model, prompt="Once upon", max_tokens=output_tokens)
        self.answered += 1

    def stream(self, client: openai.OpenAI) -> None:
        """One stream, which must end with a reason."""
        reason = None
        for chunk in client.completions.create(
            model=model, prompt="Once upon", max_tokens=output_tokens, stream=True
        ):
            reason = chunk.choices[0].finish_reason or reason
        if reason is None:
            self.fail("a stream ended without a reason")
        else:
            self.streamed += 1

    def fail(self, why: str) -> None:
        """Say at once what went wrong."""
        self.failures.append(why)
        print(why, file=sys.stderr)


def roll_out(admin: AdminClient, platform: PlatformProcess, number: int, strategy: str) -> str:
    """Change the look of replicas, wait until it is done everywhere; how it ended."""
    body = {
        "rollout": policies[strategy],
        "engine_arguments": ["--max-num-seqs", str(16 + number % 2)],
    }
    answer = admin.send("PATCH", f"/deployments/{model}", body)
    wanted = msgspec.json.decode(answer, type=Changed).generation
    found: list[Rollout] = []

    def is_over() -> bool:
        found[:] = [msgspec.json.decode(admin.get(f"/rollouts/{model}"), type=Rollout)]
        generations = {replica.generation for replica in platform.replicas()}
        return (
            found[0].state == "idle"
            and found[0].last_generation == wanted
            and len(generations) == 1
        )

    wait_until(is_over)
    return "succeeded" if found[0].last_succeeded else f"rolled back: {found[0].last_reason}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rollouts", type=int, default=100)
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--clients", type=int, default=3)
    parser.add_argument("--strategies", default=",".join(policies))
    options = parser.parse_args()
    strategies = options.strategies.split(",")
    ends: Counter[str] = Counter()
    with (
        tempfile.TemporaryDirectory(prefix="headrace-") as directory,
        PlatformProcess.start(
            Path(directory), "--demo", "--replicas", str(options.replicas)
        ) as platform,
    ):
        platform.wait_active(options.replicas)
        admin = AdminClient(AdminAddress(platform.admin_url, platform.admin_token))
        stop = threading.Event()
        clients = [Client(platform, stop) for _ in range(options.clients)]
        threads = [threading.Thread(target=client.run) for client in clients]
        start_s = time.monotonic()
        for thread in threads:
            thread.start()
        try:
            for number in range(options.rollouts):
                strategy = strategies[number % len(strategies)]
                end = roll_out(admin, platform, number, strategy)
                ends[f"{strategy} {end}"] += 1
                failed = sum(len(client.failures) for client in clients)
                print(f"{number + 1} {strategy} {end}; {failed} failed", file=sys.stderr)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        failures = [failure for client in clients for failure in client.failures]
        report = {
            "rollouts": dict(ends),
            "answered": sum(client.answered for client in clients),
            "streamed": sum(client.streamed for client in clients),
            "failed": len(failures),
            "failures_shown": failures[:20],
            "minutes": round((time.monotonic() - start_s) / 60, 1),
        }
    print(json.dumps(report, indent=2))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
