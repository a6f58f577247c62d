"""Samples the engines' token counters into the store, so that bills can be compared with them."""

import asyncio
import logging
from collections.abc import Callable, Mapping

from headrace.adapters.protocol import EngineAdapter
from headrace.base.absence import Absence
from headrace.base.clock import Clock
from headrace.base.errors import HeadraceError
from headrace.base.loops import pause_unless
from headrace.control.probe import Probe
from headrace.spec.deployments import Replica, ReplicaState
from headrace.storage.engine_samples import EngineSample, EngineSamples
from headrace.storage.store import Store

interval_s = 60.0
kept_days_default = 30
kept_days_min = 4  # reports of two days are made up for, and those of a day made again
kept_days_max = 3_660
day_s = 86_400.0
asked_at_once_max = 16

log = logging.getLogger(__name__)


class CounterSampler:
    """One sample of each serving replica a minute."""

    def __init__(
        self,
        *,
        store: Store,
        samples: EngineSamples,
        probe: Probe,
        adapters: Mapping[str, EngineAdapter],
        clock: Clock,
        kept_days: int = kept_days_default,
    ) -> None:
        self._store = store
        self._samples = samples
        self._probe = probe
        self._adapters = adapters
        self._clock = clock
        self._kept_s = kept_days * day_s

    async def run(self, stop: asyncio.Event, leads: Callable[[], bool]) -> None:
        """Sample while this control plane leads, until told to stop.

        What cannot be written is left out; the next sample says all that it did."""
        away = Absence(
            log, self._clock, "the engines' counters are not sampled", "they are sampled again"
        )
        while not stop.is_set():
            try:
                if leads():
                    await self.sample_once()
                    away.end()
            except HeadraceError as error:
                away.note(error)
            await pause_unless(stop, interval_s)

    async def sample_once(self) -> int:
        """Sample every replica that serves, and forget what is old; how many said something."""
        replicas = await asyncio.to_thread(self._store.list, Replica)
        slots = asyncio.Semaphore(asked_at_once_max)

        async def ask(replica: Replica) -> EngineSample | None:
            async with slots:
                return await self._sample(replica)

        serving = [one for one in replicas if one.state is ReplicaState.ACTIVE and one.address]
        found = await asyncio.gather(*(ask(replica) for replica in serving))
        samples = [sample for sample in found if sample is not None]
        await asyncio.to_thread(self._samples.add, samples)
        await asyncio.to_thread(self._samples.forget, self._clock.wall_s() - self._kept_s)
        return len(samples)

    async def _sample(self, replica: Replica) -> EngineSample | None:
        adapter = self._adapters.get(replica.engine)
        if adapter is None:
            return None
        load = await self._probe.load(adapter, replica)
        if load.prompt_tokens_total is None or load.completion_tokens_total is None:
            return None
        return EngineSample(
            replica_id=replica.id,
            sample_time=self._clock.wall_s(),
            generation=f"{replica.launch_id}:{replica.launch_time}"[:64],
            prompt_tokens=load.prompt_tokens_total,
            completion_tokens=load.completion_tokens_total,
            running_requests=load.running_requests,
        )
