"""What agents said last, kept in memory: heartbeats cost the store nothing.

A control plane that restarts begins with an empty book; until a node reports, it counts as silent
since then, and its launches as running.
"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.control.world import ModelFileState
from headrace.launchers.protocol import Launch, LaunchState
from headrace.spec.nodes import (
    CacheReport,
    Inventory,
    LaunchPhase,
    LaunchReport,
    ModelOrder,
    ModelReport,
    NodeLaunch,
    NodeReport,
)

nodes_max = 4096  # remembered; those heard of longest ago are forgotten first
ports_given_max = 16  # lately given out on a node, perhaps not yet taken


@dataclass(slots=True)
class Heard:
    """One node's last report."""

    report: NodeReport
    heard_s: float
    ports_given: list[int] = field(default_factory=list)
    logs_wanted: dict[str, int] = field(default_factory=dict)  # readers who wait, by launch


class NodeBook:
    """The last report of each node; safe from any thread."""

    def __init__(self, start_s: float) -> None:
        """`start_s` is now, on the clock that all later times are of."""
        self._start_s = start_s
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)  # a report came
        self._nodes: dict[str, Heard] = {}

    def hear(self, node_id: str, report: NodeReport, now_s: float) -> None:
        """Take a report; one that was overtaken by a later one of its life changes nothing."""
        with self._lock:
            known = self._nodes.pop(node_id, None)
            if known is not None and overtaken(report, known.report):
                self._nodes[node_id] = known
                return
            fresh = Heard(report, now_s)
            if known is not None:
                fresh.ports_given, fresh.logs_wanted = known.ports_given, known.logs_wanted
            self._nodes[node_id] = fresh
            self._changed.notify_all()
            if len(self._nodes) > nodes_max:
                del self._nodes[next(iter(self._nodes))]

    def forget(self, node_id: str) -> None:
        """A node that was removed."""
        with self._lock:
            self._nodes.pop(node_id, None)

    @property
    def heard(self) -> frozenset[str]:
        """The nodes that reported in this life."""
        with self._lock:
            return frozenset(self._nodes)

    def silence_s(self, node_id: str, now_s: float) -> float:
        """How long a node has said nothing."""
        with self._lock:
            known = self._nodes.get(node_id)
        return max(0.0, now_s - (self._start_s if known is None else known.heard_s))

    def launch(self, order: NodeLaunch) -> Launch:
        """An order as it stands on its node; one that its node did not speak of runs."""
        for told in self._told(order.parent_id):
            if told.launch_id == order.id:
                ended = told.phase is LaunchPhase.ENDED
                state = LaunchState.ENDED if ended else LaunchState.RUNNING
                return Launch(order.id, order.name, state, told.exit_status, told.last_line)
        return Launch(order.id, order.name, LaunchState.RUNNING, last_line="waits for its node")

    def _told(self, node_id: str) -> tuple[LaunchReport, ...]:
        with self._lock:
            known = self._nodes.get(node_id)
        return () if known is None else known.report.launches

    def model(self, node_id: str, wanted: ModelOrder) -> ModelFileState:
        """Where a model's file lies on a node, or how far it is."""
        for told in self.models(node_id):
            if (told.source, told.sha256) == (wanted.source, wanted.sha256):
                return ModelFileState(told.path, told.detail, told.progress)
        return ModelFileState(detail="its node has not begun to fetch the model yet")

    def models(self, node_id: str) -> tuple[ModelReport, ...]:
        """What a node said of model files."""
        with self._lock:
            known = self._nodes.get(node_id)
        return () if known is None else known.report.models

    def logs_wanted(self, node_id: str) -> tuple[str, ...]:
        """The launches of a node whose output somebody waits for."""
        with self._lock:
            known = self._nodes.get(node_id)
            return () if known is None else tuple(known.logs_wanted)

    def read_log(self, node_id: str, launch_id: str, timeout_s: float) -> str | None:
        """Ask a node for a launch's output, and wait for it; None if none came in time."""
        with self._lock:
            known = self._nodes.get(node_id)
            if known is None:
                return None
            wanted, before = known.logs_wanted, known.report
            wanted[launch_id] = wanted.get(launch_id, 0) + 1

            def has_come() -> bool:
                now = self._nodes.get(node_id)
                return now is None or (now.report is not before and launch_id in now.report.logs)

            came = self._changed.wait_for(has_come, timeout_s)
            wanted[launch_id] -= 1
            if not wanted[launch_id]:
                del wanted[launch_id]
            now = self._nodes.get(node_id)
            return now.report.logs[launch_id] if came and now is not None else None

    def cache(self, node_id: str) -> CacheReport | None:
        """A node's weight cache; None if it has not told."""
        with self._lock:
            known = self._nodes.get(node_id)
        return None if known is None else known.report.cache

    def take_port(self, node_id: str) -> int | None:
        """A port that the node says is free and that was not lately given out; None: no more."""
        with self._lock:
            known = self._nodes.get(node_id)
            if known is None:
                return None
            for port in known.report.ports:
                if port not in known.ports_given:
                    known.ports_given.append(port)
                    del known.ports_given[:-ports_given_max]
                    return port
        return None


def overtaken(report: NodeReport, known: NodeReport) -> bool:
    """Whether a later report of the same life was here first."""
    return report.life == known.life and report.sequence < known.sequence


def changed_inventory(report: NodeReport, known: Inventory, labels: Mapping[str, str]) -> bool:
    """Whether a report tells something else of the machine than what is written."""
    if report.inventory is None:
        return False
    return report.inventory != known or dict(report.labels) != dict(labels)
