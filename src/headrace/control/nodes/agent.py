"""A node's side: makes what runs here what the orders say, and reports.

    orders ──> stop what has no order ──all of it ended──> start what is missing
    a look at the processes, a few times a second ──something changed, or the time is up──> report

Whatever the agent missed, the next orders name all that shall run. It starts nothing before it has
orders, and ends nothing because nobody answers: while the control plane is away all goes on. Its
processes outlive it; the next agent of this directory finds them by their records.
"""

import asyncio
import logging
import secrets
import ssl
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from headrace.base.clock import Clock
from headrace.base.errors import HeadraceError, UpstreamFailed
from headrace.control.model_files import ModelFiles
from headrace.control.nodes.cache_keeper import CacheKeeper, needed_paths
from headrace.control.nodes.report_api import report_path
from headrace.http.client import HttpClient
from headrace.launchers.protocol import Launch, Launcher, LaunchSpec, LaunchState, Resources
from headrace.spec.nodes import (
    CacheReport,
    Inventory,
    LaunchOrder,
    LaunchPhase,
    LaunchReport,
    ModelReport,
    NodeOrders,
    NodeReport,
)

logger = logging.getLogger(__name__)

look_interval_s = 0.2
report_timeout_s = 10.0
retry_interval_s = 1.0  # between reports that nobody answered
stop_grace_s = 10.0
tidy_interval_s = 60.0  # between looks at the weight cache
answer_bytes_max = 16 << 20
log_bytes_max = 64 << 10  # of one launch, in a report
logs_at_once_max = 8


class Worker:
    """The processes and files of a node; knows nothing of who orders them."""

    def __init__(
        self,
        launcher: Launcher,
        model_files: ModelFiles,
        ports: Callable[[], Sequence[int]],
        cache: CacheKeeper | None = None,
    ) -> None:
        """Without a `cache` the node's files are nobody's to tidy."""
        self._cache = cache
        self._launcher = launcher
        self._model_files = model_files
        self._ports = ports
        self._orders: NodeOrders | None = None
        self._refused: dict[str, str] = {}  # orders that could not be started, and why
        self._stopping: dict[str, asyncio.Task[None]] = {}

    async def obey(self, orders: NodeOrders | None) -> None:
        """One step towards what is ordered; never waits for a process to end."""
        if orders is None:
            return
        self._orders = orders
        wanted = {order.launch_id: order for order in orders.launches}
        self._refused = {name: why for name, why in self._refused.items() if name in wanted}
        present = await asyncio.to_thread(self._launcher.list)
        for launch in present:
            if launch.name not in wanted and launch.launch_id not in self._stopping:
                task = asyncio.create_task(self._stop(launch))
                self._stopping[launch.launch_id] = task
        if self._stopping:
            return  # what ends may hold the devices of what comes
        known = {launch.name for launch in present}
        for name, order in wanted.items():
            if name not in known and name not in self._refused:
                await asyncio.to_thread(self._start, order)

    async def _stop(self, launch: Launch) -> None:
        try:
            await asyncio.to_thread(self._launcher.stop, launch.launch_id, stop_grace_s)
        except Exception:  # the next look tries again
            logger.exception("launch %s could not be stopped", launch.launch_id)
        finally:
            del self._stopping[launch.launch_id]

    def _start(self, order: LaunchOrder) -> None:
        try:
            self._launcher.start(
                LaunchSpec(
                    order.launch_id,
                    order.argv,
                    order.environment,
                    order.watches_lifeline,
                    resources=Resources(
                        cpu_count=order.cpu_count,
                        memory_bytes=order.memory_bytes,
                        niceness=order.niceness,
                        device_ids=order.device_ids,
                    ),
                )
            )
        except HeadraceError as error:
            logger.warning("the order %s cannot be started: %s", order.launch_id, error.message)
            self._refused[order.launch_id] = error.message

    def launches(self) -> tuple[LaunchReport, ...]:
        """Every order as it stands; before there were any, what runs."""
        reports = {launch.name: report_of(launch) for launch in self._launcher.list()}
        for name, why in self._refused.items():
            reports[name] = LaunchReport(launch_id=name, phase=LaunchPhase.ENDED, last_line=why)
        for order in self._orders.launches if self._orders is not None else ():
            reports.setdefault(
                order.launch_id,
                LaunchReport(launch_id=order.launch_id, phase=LaunchPhase.WAITING),
            )
        return tuple(report for _, report in sorted(reports.items()))

    def logs(self) -> dict[str, str]:
        """The end of the output of those launches that somebody wants to read."""
        return {
            launch_id: self._launcher.log(launch_id, log_bytes_max).decode(errors="replace")
            for launch_id in (self._orders.logs_wanted[:logs_at_once_max] if self._orders else ())
        }

    def models(self) -> tuple[ModelReport, ...]:
        """The ordered files; a fetch begins where one is missing."""
        found = []
        for wanted in self._orders.models if self._orders is not None else ():
            state = self._model_files.state(wanted.source, wanted.sha256, wanted.files)
            found.append(
                ModelReport(
                    source=wanted.source,
                    sha256=wanted.sha256,
                    path=state.path,
                    detail=state.detail,
                    progress=state.progress,
                )
            )
        return tuple(found)

    def tidy_cache(self) -> None:
        """Keep the weight cache within its budget, once it is known what is needed."""
        if self._cache is None or self._orders is None:
            return
        needed = needed_paths(self._orders, (model.path for model in self.models()))
        for item in self._cache.tidy(needed):
            logger.info("removed %s from the weight cache: %d bytes", item.name, item.size_bytes)

    def cache(self) -> CacheReport | None:
        """The weight cache as it was when it was last looked at."""
        return None if self._cache is None else self._cache.report

    def free_ports(self) -> tuple[int, ...]:
        """Ports that nothing listens on now."""
        return tuple(self._ports())

    async def ended(self) -> None:
        """Wait until everything that was told to end has ended."""
        await asyncio.gather(*self._stopping.values())

    async def end_all(self) -> None:
        """End every process, for a person who wants this node to stop."""
        present = await asyncio.to_thread(self._launcher.list)
        await asyncio.gather(
            *(
                asyncio.to_thread(self._launcher.stop, launch.launch_id, stop_grace_s)
                for launch in present
            )
        )


def report_of(launch: Launch) -> LaunchReport:
    """A process as it is told of."""
    ended = launch.state is LaunchState.ENDED
    return LaunchReport(
        launch_id=launch.name,
        phase=LaunchPhase.ENDED if ended else LaunchPhase.RUNNING,
        exit_status=launch.exit_status,
        last_line=launch.last_line,
    )


class NodeAgent:
    """Reports to whichever control plane leads, and has the worker do what it answers."""

    def __init__(
        self,
        *,
        urls: Sequence[str],
        token: str,
        worker: Worker,
        client: HttpClient,
        clock: Clock,
        inventory: Callable[[], Inventory],
        labels: Mapping[str, str],
    ) -> None:
        self._urls = list(urls)
        self._token = token
        self._worker = worker
        self._client = client
        self._clock = clock
        self._inventory = inventory
        self._labels = labels
        self._life = secrets.token_hex(8)
        self._sequence = 0
        self._tells_inventory = True
        self._refusal = ""
        self.orders: NodeOrders | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Report and obey until told to stop."""
        told: object = None
        due_s = tidy_due_s = 0.0
        while not stop.is_set():
            seen = await asyncio.to_thread(self._worker.launches)
            if seen != told or self._clock.monotonic_s() >= due_s:
                answered = await self.report()
                told = seen if answered else None
                interval_s = self.orders.report_interval_s if self.orders else retry_interval_s
                due_s = self._clock.monotonic_s() + interval_s
                pause_s = look_interval_s if answered else retry_interval_s
            else:
                pause_s = look_interval_s
            await self._worker.obey(self.orders)
            if self._clock.monotonic_s() >= tidy_due_s and self.orders is not None:
                tidy_due_s = self._clock.monotonic_s() + tidy_interval_s
                await asyncio.to_thread(self._worker.tidy_cache)
            try:
                async with asyncio.timeout(pause_s):
                    await stop.wait()
            except TimeoutError:
                continue

    async def report(self) -> bool:
        """Say what is, and take orders; whether a leader answered."""
        report = await asyncio.to_thread(self._report)
        try:
            answer = await self._client.fetch(
                "POST",
                self._urls[0] + report_path,
                headers={
                    "Authorization": f"Bearer {self._token}",
                    "Content-Type": "application/json",
                },
                body=msgspec.json.encode(report),
                timeout_s=report_timeout_s,
                limit_bytes=answer_bytes_max,
            )
            if answer.status != 200:
                words = answer.body[:300].decode(errors="replace")
                raise UpstreamFailed(f"it answered {answer.status}: {words}")
            orders = msgspec.json.decode(answer.body, type=NodeOrders)
        except (HeadraceError, msgspec.DecodeError) as error:
            self._complain(words_of(error, self._urls[0]))
            self._urls.append(self._urls.pop(0))
            self._tells_inventory = True
            return False
        if self._refusal or self.orders is None:
            logger.info("node %s reports to %s", orders.node_name, self._urls[0])
        self._refusal = ""
        self._tells_inventory = orders.inventory_wanted
        self.orders = orders
        return True

    def _complain(self, why: str) -> None:
        """Log what changed, not every try."""
        if why != self._refusal:
            logger.warning("%s does not take the report (%s); all goes on", self._urls[0], why)
            self._refusal = why

    def _report(self) -> NodeReport:
        self._sequence += 1
        return NodeReport(
            life=self._life,
            sequence=self._sequence,
            inventory=self._inventory() if self._tells_inventory else None,
            labels=dict(self._labels),
            launches=self._worker.launches(),
            models=self._worker.models(),
            ports=self._worker.free_ports(),
            cache=self._worker.cache(),
            logs=self._worker.logs(),
        )


def words_of(error: Exception, url: str) -> str:
    """Why a control plane took no report, for whoever looks after this machine."""
    cause = error.__cause__
    if isinstance(cause, ssl.SSLCertVerificationError):
        return (
            f"its certificate is not trusted here, {cause.verify_message}; if your own authority "
            "signed it, name that one's file in SSL_CERT_FILE"
        )
    if isinstance(cause, ssl.SSLError):
        return f"TLS fails ({cause.reason}); if it listens without, name it as http://"
    if isinstance(cause, TimeoutError):
        return "no connection in time; check the address, and what filters packets between"
    if isinstance(cause, OSError):
        return f"no connection: {cause.strerror or cause}"
    if isinstance(error, UpstreamFailed) and url.startswith("http://"):
        return f"{error.message} If it listens with TLS, name it as https://"
    return str(error)


def tidy_logs(directory: Path, kept: int) -> None:
    """Remove all but the newest logs of launches."""
    logs = sorted(directory.glob("nln_*.log"), key=lambda path: path.name, reverse=True)
    for path in logs[kept:]:
        path.unlink(missing_ok=True)
