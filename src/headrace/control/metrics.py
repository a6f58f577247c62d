"""What a control plane tells Prometheus: whether it leads, what is not as wanted, and whether what
was billed is what engines counted."""

import threading
from collections import Counter
from collections.abc import Callable, Mapping

from headrace.base.clock import Clock
from headrace.ledger.reconciliation import differing_tokens, reconcile
from headrace.observability import control_metrics as declared
from headrace.observability.metrics import render
from headrace.spec.deployments import Deployment, Replica, ReplicaState
from headrace.spec.nodes import Node, NodeState
from headrace.storage import Database
from headrace.storage.reconciliation_reports import StoredReport

span_s = 3600.0  # that is compared
compare_interval_s = 30.0  # so often at most, however often somebody scrapes


class ControlMetrics:
    """The metrics of one control plane; any thread may ask."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        leads: Callable[[], bool],
        is_frozen: Callable[[], bool] = lambda: False,
        loop_failures: Callable[[], Mapping[str, float]] = dict,
    ) -> None:
        self._loop_failures = loop_failures
        self._is_frozen = is_frozen
        self._database = database
        self._clock = clock
        self._leads = leads
        self._lock = threading.Lock()
        self._start_time = clock.wall_s()
        self._compared_s: float | None = None
        self._unexplained_tokens = 0
        self._difference_tokens = 0

    def text(self) -> bytes:
        """Everything in Prometheus' text format."""
        store = self._database.store
        replicas = store.list(Replica)
        states = Counter(replica.state for replica in replicas)
        ready = Counter(
            replica.parent_id for replica in replicas if replica.state is ReplicaState.ACTIVE
        )
        nodes = Counter(node.state for node in store.list(Node))
        short = sum(ready[item.id] < item.replicas for item in store.list(Deployment))
        report = next(iter(self._database.reconciliations.newest(1)), None)
        with self._lock:
            self._compare()
            difference, unexplained = self._difference_tokens, self._unexplained_tokens
        return render(
            [
                (declared.leads, float(self._leads())),
                (declared.store_revision, store.revision()),
                (declared.replicas, {state.value: float(states[state]) for state in ReplicaState}),
                (declared.nodes, {state.value: float(nodes[state]) for state in NodeState}),
                (declared.nodes_frozen, float(self._is_frozen())),
                (declared.short_deployments, short),
                (declared.difference_tokens, difference),
                (declared.unexplained_tokens, unexplained),
                (declared.report_age_seconds, self._report_age_s(report)),
                (declared.report_unexplained_tokens, report.unexplained_tokens if report else 0),
                (declared.loop_failures_total, self._loop_failures()),
            ],
            "",
        )

    def _report_age_s(self, newest: StoredReport | None) -> float:
        """How long ago the newest hour that is reported ended; of none, since this began."""
        return self._clock.wall_s() - (self._start_time if newest is None else newest.end_time)

    def _compare(self) -> None:
        now_s = self._clock.monotonic_s()
        if self._compared_s is not None and now_s - self._compared_s < compare_interval_s:
            return
        self._compared_s = now_s
        samples, wall_s = self._database.engine_samples, self._clock.wall_s()
        rows = reconcile(samples.read(wall_s - span_s, wall_s), samples.billed)
        self._difference_tokens = differing_tokens(rows)
        self._unexplained_tokens = differing_tokens([row for row in rows if not row.is_explained])
