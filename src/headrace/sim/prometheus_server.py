"""A real Prometheus on loopback, which scrapes what it is told and loads our rules.

with PrometheusServer(directory, {"gateway": url}) as prometheus: prometheus.query("up")
"""

import json
import shutil
import socket
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from headrace.sim.child_process import ChildProcess

scrape_interval = "200ms"


class PrometheusServer(ChildProcess):
    """One server with its data in a directory of its own."""

    def __init__(
        self,
        directory: Path,
        targets: Mapping[str, str],
        *,
        discovered_at: str | None = None,
        rule_files: tuple[Path, ...] = (),
    ) -> None:
        """`targets` are base URLs by job; more are told by HTTP at `discovered_at`."""
        directory.mkdir(parents=True)
        config = directory / "prometheus.yml"
        scrape_configs: list[dict[str, Any]] = [
            {"job_name": job, "static_configs": [{"targets": [url.partition("://")[2]]}]}
            for job, url in targets.items()
        ]
        if discovered_at is not None:
            discovery = {"url": discovered_at, "refresh_interval": "1s"}
            scrape_configs.append({"job_name": "replicas", "http_sd_configs": [discovery]})
        config.write_text(
            yaml.safe_dump(
                {
                    "global": {"scrape_interval": scrape_interval, "evaluation_interval": "1s"},
                    "rule_files": [str(path) for path in rule_files],
                    "scrape_configs": scrape_configs,
                }
            )
        )
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.url = f"http://127.0.0.1:{probe.getsockname()[1]}"
        self._log = directory / "log.txt"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(  # noqa: S603 -- a program that `missing` looked for
                [
                    shutil.which("prometheus") or "prometheus",
                    f"--config.file={config}",
                    f"--storage.tsdb.path={directory / 'data'}",
                    f"--web.listen-address={self.url.partition('://')[2]}",
                    "--enable-feature=exemplar-storage",
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    @staticmethod
    def missing() -> str:
        """Why there is none on this machine; empty if there is."""
        found = shutil.which("prometheus")
        return "" if found else "prometheus is missing: apt-get install prometheus"

    @property
    def log(self) -> str:
        """What it wrote."""
        return self._log.read_text(errors="replace")

    def query(self, expression: str) -> dict[str, float]:
        """The values now, by their labels as text; nothing while it does not answer yet."""
        answer = self._ask(f"/api/v1/query?query={urllib.parse.quote(expression)}")
        if answer is None:
            return {}
        return {
            json.dumps(series["metric"], sort_keys=True): float(series["value"][1])
            for series in answer["data"]["result"]
        }

    def rule_groups(self) -> list[str]:
        """The names of the rule groups that it evaluates, all of them healthy."""
        answer = self._ask("/api/v1/rules")
        if answer is None:
            return []
        return [
            group["name"]
            for group in answer["data"]["groups"]
            if all(rule["health"] == "ok" for rule in group["rules"])
        ]

    def exemplars(self, expression: str) -> list[dict[str, str]]:
        """The labels of the exemplars of the last hour."""
        answer = self._ask(
            f"/api/v1/query_exemplars?query={urllib.parse.quote(expression)}&start=0&end=99999999999"
        )
        if answer is None:
            return []
        return [one["labels"] for series in answer["data"] for one in series["exemplars"]]

    def _ask(self, path: str) -> Any:
        """What it answers as JSON; None while it does not answer yet."""
        if self.process.poll() is not None:
            raise RuntimeError(f"prometheus ended:\n{self.log}")
        try:
            with urllib.request.urlopen(self.url + path, timeout=10) as answer:  # noqa: S310 -- http
                return json.loads(answer.read())
        except OSError:
            return None
