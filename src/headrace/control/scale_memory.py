"""Keeps what replicas were found to bear, so that a control plane that restarts goes on with it.

A load belongs to the generation that bore it: another model or other devices begin with a guess.
"""

from collections.abc import Collection

from headrace.base.clock import Clock
from headrace.control.autoscale import Outlook
from headrace.spec.deployments import Deployment
from headrace.storage.learnt_loads import LearntLoad, LearntLoads

kept_change = 0.03  # of the load; a smaller one is not worth a write


class ScaleMemory:
    """Outlooks over restarts; blocks."""

    def __init__(self, loads: LearntLoads, clock: Clock) -> None:
        self._loads = loads
        self._clock = clock
        self._kept: dict[str, LearntLoad] = {}  # what the store has, by deployment

    def recall(self, deployment: Deployment) -> Outlook:
        """A new outlook, with what was learnt of this generation before."""
        outlook = Outlook()
        load = self._loads.find(deployment.id)
        if load is None or load.generation != deployment.generation:
            return outlook
        self._kept[deployment.id] = load
        outlook.bearable_tokens_per_s = load.tokens_per_s
        if load.cut_time is not None:
            age_s = max(0.0, self._clock.wall_s() - load.cut_time)
            outlook.too_much_tokens_per_s = load.too_much_tokens_per_s
            outlook.too_much_replicas = deployment.replicas  # about as many as it was found with
            outlook.cut_s = self._clock.monotonic_s() - age_s
        return outlook

    def keep(self, deployment: Deployment, outlook: Outlook) -> None:
        """Write what is believed, if it is not what was written."""
        tokens_per_s = outlook.bearable_tokens_per_s
        if tokens_per_s is None:
            return
        kept = self._kept.get(deployment.id)
        if (
            kept is not None
            and kept.generation == deployment.generation
            and kept.too_much_tokens_per_s == outlook.too_much_tokens_per_s
            and abs(tokens_per_s - kept.tokens_per_s) <= kept_change * kept.tokens_per_s
        ):
            return
        cut_time = None
        if outlook.too_much_tokens_per_s is not None:
            cut_time = self._clock.wall_s() - (self._clock.monotonic_s() - outlook.cut_s)
        load = LearntLoad(
            deployment_id=deployment.id,
            generation=deployment.generation,
            tokens_per_s=tokens_per_s,
            too_much_tokens_per_s=outlook.too_much_tokens_per_s,
            cut_time=cut_time,
        )
        self._loads.keep(load)
        self._kept[deployment.id] = load

    def keep_only(self, deployment_ids: Collection[str]) -> None:
        """Forget those of deployments that are gone."""
        self._loads.keep_only(deployment_ids)
        self._kept = {name: load for name, load in self._kept.items() if name in deployment_ids}
