"""The loop that looks at each deployment whenever something may have changed.

It is woken by a change of the store, by the clock, and by its own unfinished work, and learns
nothing from which of them it was. A name is never worked on twice at once; a look that fails is
logged and repeated later, a little more patiently each time.
"""

import asyncio
import logging
from collections.abc import Callable

from headrace.base.absence import Absence
from headrace.base.clock import Clock
from headrace.base.errors import Conflict, HeadraceError, NotFound
from headrace.base.loops import LoopKeeper, Pause, pause_unless
from headrace.control.applier import Applier
from headrace.control.decide import ControlTimes, decide
from headrace.control.leader import Alone, Leader, retry_interval_s
from headrace.control.observer import Observer
from headrace.control.work_queue import WorkQueue
from headrace.spec.deployments import ReplicaState

logger = logging.getLogger(__name__)

tick_s = 0.25  # how late a change of the store may be seen
settled_look_s = 1.0  # how late the end of a process may be seen
error_pause_max_s = 30.0
looks_at_once_max = 16
doublings_max = 10
deployments_loop = "deployments"


class Reconciler:
    """Makes what runs follow what is desired, one deployment at a time."""

    def __init__(
        self,
        observer: Observer,
        applier: Applier,
        clock: Clock,
        times: ControlTimes,
        revision: Callable[[], int],
        *,
        leader: Leader | None = None,
        loops: LoopKeeper | None = None,
        pause: Pause = pause_unless,
    ) -> None:
        """Without a `leader` this control plane is the only one. `loops` is told of faults; `pause`
        waits for seconds, or until an event is set."""
        self._pause = pause
        self._away = Absence(logger, clock, "deployments wait", "deployments are looked at again")
        self._leader = leader or Leader(Alone())
        self._loops = loops or LoopKeeper(clock)
        self._observer = observer
        self._applier = applier
        self._clock = clock
        self._times = times
        self._revision = revision
        self._queue = WorkQueue()
        self._working: dict[str, asyncio.Task[None]] = {}
        self._failures: dict[str, int] = {}  # in a row
        self._held_until_s: dict[str, float] = {}

    async def reconcile(self, name: str) -> bool:
        """Look at one deployment and do what is due; whether all is as desired."""
        world = await self._observer.world(name)
        actions = decide(world, self._times)
        if actions and not await self._leader.confirm():
            return False  # another control plane acts by now
        for action in actions:
            await asyncio.to_thread(self._applier.apply, action)
        serving = all(replica.state is ReplicaState.ACTIVE for replica in world.replicas)
        return serving and not actions

    async def run(self, stop: asyncio.Event) -> None:
        """Reconcile until told to stop; what is under way is finished first."""
        seen_revision = -1
        sweep_due_s = held_until_s = 0.0
        while not stop.is_set():
            now_s = self._clock.monotonic_s()
            if not await self._leader.ask():
                await self._pause(stop, retry_interval_s)
                continue
            try:
                if now_s >= held_until_s:
                    revision = await asyncio.to_thread(self._revision)
                    if revision != seen_revision:
                        seen_revision = revision
                        await self._wake_all(now_s)
                    if now_s >= sweep_due_s:
                        sweep_due_s = now_s + settled_look_s
                        await self._wake_all(now_s)
                        await self._sweep()
                        self._away.end()
            except HeadraceError as error:
                self._away.note(error)
            except Exception as error:  # noqa: BLE001 -- noted, with its traceback
                # What is known to be due goes on.
                held_until_s = now_s + self._loops.note(deployments_loop, error)
            self._start_due(now_s)
            await self._pause(stop, tick_s)
        if self._working:
            await asyncio.wait(self._working.values())
        await self._leader.resign()

    async def _wake_all(self, now_s: float) -> None:
        """Have every deployment looked at; one that went wrong not before its pause is over."""
        names = await asyncio.to_thread(self._observer.names)
        self._failures = {name: n for name, n in self._failures.items() if name in names}
        self._held_until_s = {
            name: until_s
            for name, until_s in self._held_until_s.items()
            if name in names and until_s > now_s
        }
        for name in names:
            self._queue.add(name, self._held_until_s.get(name, now_s))

    def _start_due(self, now_s: float) -> None:
        later: list[str] = []
        while len(self._working) < looks_at_once_max:
            name = self._queue.take(now_s)
            if name is None:
                break
            if name in self._working:
                later.append(name)
                continue
            self._working[name] = asyncio.create_task(self._work(name))
        for name in later:
            self._queue.add(name, now_s + tick_s)

    async def _work(self, name: str) -> None:
        try:
            settled = await self.reconcile(name)
        except Conflict as moved_on:
            logger.info("deployment %s changed meanwhile: %s", name, moved_on.message)
            self._again(name, tick_s)
        except NotFound as missing:  # once it is a race, for ever it is a model that was deleted
            self._hold(name, missing.message)
        except HeadraceError as error:
            self._hold(name, error.message)
        except Exception as error:  # noqa: BLE001 -- noted, with its traceback
            self._loops.note(deployments_loop, error)
            self._hold(name, f"a fault, {type(error).__name__}")
        else:
            self._failures.pop(name, None)
            if not settled:
                self._again(name, tick_s)
        finally:
            del self._working[name]

    def _hold(self, name: str, why: str) -> None:
        """A look went wrong: the next one comes later each time, whatever wakes it."""
        failures = self._failures.get(name, 0) + 1
        self._failures[name] = failures
        pause_s = min(error_pause_max_s, tick_s * 2 ** min(failures, doublings_max))
        level = logging.INFO if self._away.is_on else logging.WARNING  # that is told for all
        told = "deployment %s, try %d: %s; again in %g s"
        logger.log(level, told, name, failures, why, pause_s)
        self._held_until_s[name] = self._clock.monotonic_s() + pause_s
        self._again(name, pause_s)

    def _again(self, name: str, pause_s: float) -> None:
        self._queue.add(name, self._clock.monotonic_s() + pause_s)

    async def _sweep(self) -> None:
        for launch_id in await asyncio.to_thread(self._observer.orphans):
            logger.warning("stopping launch %s, which belongs to no replica", launch_id)
            await asyncio.to_thread(self._applier.stop_launch, launch_id)
