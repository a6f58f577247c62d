"""Looks at every autoscaled deployment now and then, and writes how many replicas it gets.

The rule is `autoscale`'s; here are its inputs, taken from what gateways said and from the store,
and the one budget of devices over all deployments. The last look is kept, so that people can ask
why.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from headrace.base.clock import Clock
from headrace.base.errors import Conflict
from headrace.control.autoscale import Claim, Outlook, Proposal, propose, share_devices
from headrace.control.first_guess import first_guess
from headrace.control.load_evidence import Sample
from headrace.control.scale_memory import ScaleMemory
from headrace.control.traffic import TrafficBook
from headrace.spec.autoscaling import ScaleState
from headrace.spec.deployments import Deployment, Replica, ReplicaState
from headrace.spec.models import Model, ModelVersion
from headrace.spec.nodes import Node
from headrace.storage.learnt_loads import LearntLoads
from headrace.storage.store import Store

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Look:
    """One look at one deployment: what was seen, what was proposed, what was granted."""

    sample: Sample
    proposal: Proposal
    granted: int
    before: int


@dataclass(slots=True)
class Counted:
    """Totals at the look before."""

    time_s: float
    arrived_tokens: int
    first_tokens: list[int]
    inter_tokens: list[int]


class Scaler:
    """The hands of the autoscaler; blocks, so run it in a thread."""

    def __init__(
        self,
        store: Store,
        loads: LearntLoads,
        book: TrafficBook,
        clock: Clock,
        devices: int | None = None,
    ) -> None:
        """`devices` is the budget over all deployments; None: there is none."""
        self._store = store
        self._memory = ScaleMemory(loads, clock)
        self._book = book
        self._clock = clock
        self._devices = devices
        self._present: set[str] | None = None  # ids at the last look
        self._outlooks: dict[str, Outlook] = {}
        self._counted: dict[str, Counted] = {}
        self.looks: dict[str, Look] = {}  # the last of each deployment, by id

    def look(self) -> None:
        """Look at all of them, share the devices, and write what changed."""
        every = self._store.list(Deployment)
        present = {deployment.id for deployment in every}
        self._book.keep_only(present)
        if present != self._present:
            self._forget_all_but(present)
        scaled = [deployment for deployment in every if deployment.autoscaling is not None]
        names = {model.id: model.name for model in self._store.list(Model)}
        replicas: dict[str, list[Replica]] = {}
        for replica in self._store.list(Replica):
            replicas.setdefault(replica.parent_id, []).append(replica)
        parameters = {version.id: version.parameters for version in self._store.list(ModelVersion)}
        nodes = {node.id: node for node in self._store.list(Node)}
        shares = pool_shares(scaled)
        found: dict[str, tuple[Sample, Proposal]] = {}
        for deployment in scaled:
            own = replicas.get(deployment.id, ())
            sample = self._sample(
                deployment,
                names.get(deployment.parent_id, ""),
                own,
                shares[deployment.id],
                first_guess(
                    parameters.get(deployment.model_version_id), deployment.resources, own, nodes
                ),
            )
            if sample is not None:
                found[deployment.id] = sample, self._propose(deployment, sample)
        self._grant(every, found)

    def _forget_all_but(self, present: set[str]) -> None:
        """These deployments are all that there are."""
        self._present = present
        self._memory.keep_only(present)
        for kept in (self._outlooks, self._counted, self.looks):
            for gone in kept.keys() - present:
                del kept[gone]

    def _propose(self, deployment: Deployment, sample: Sample) -> Proposal:
        policy = deployment.autoscaling
        assert policy is not None
        outlook = self._outlooks.get(deployment.id)
        if outlook is None:
            outlook = self._outlooks[deployment.id] = self._memory.recall(deployment)
        proposal = propose(policy, outlook, sample, deployment.replicas, self._clock.wall_s())
        self._memory.keep(deployment, outlook)
        return proposal

    def _grant(
        self, every: Sequence[Deployment], found: Mapping[str, tuple[Sample, Proposal]]
    ) -> None:
        claims = [claim_of(deployment, found) for deployment in every]
        granted = share_devices(claims, self._devices)
        for deployment in every:
            if deployment.id not in found:
                continue
            sample, proposal = found[deployment.id]
            replicas = granted[deployment.id]
            self.looks[deployment.id] = Look(sample, proposal, replicas, deployment.replicas)
            if replicas != deployment.replicas:
                self._write(deployment, replicas, proposal)

    def _write(self, deployment: Deployment, replicas: int, proposal: Proposal) -> None:
        reason = proposal.reason
        if replicas < proposal.replicas:
            reason = f"{reason}; the device budget leaves {replicas} of {proposal.replicas}"
        state = ScaleState(replicas=replicas, time=self._clock.wall_s(), reason=reason)
        try:
            self._store.update(msgspec.structs.replace(deployment, replicas=replicas, scale=state))
        except Conflict:
            return  # it changed under us: the next look decides on what it is by then
        logger.info(
            "deployment %s: %d replicas, was %d (%s)",
            deployment.name, replicas, deployment.replicas, reason,
        )  # fmt: skip

    def _sample(
        self,
        deployment: Deployment,
        model: str,
        replicas: Sequence[Replica],
        share: float,
        guess_tokens_per_s: float | None,
    ) -> Sample | None:
        """What happened since the look before; None on the first."""
        now_s = self._clock.monotonic_s()
        totals = self._book.totals_of(deployment.id)
        arrived_tokens = self._book.arrived(model).tokens
        counted = Counted(now_s, arrived_tokens, totals.first_tokens, totals.inter_tokens)
        before = self._counted.get(deployment.id)
        self._counted[deployment.id] = counted
        if before is None or now_s <= before.time_s:
            return None
        elapsed_s = now_s - before.time_s
        waiting = self._book.waiting(model, now_s)
        load = self._book.load(deployment.id, now_s)
        return Sample(
            time_s=now_s,
            tokens_per_s=share * (counted.arrived_tokens - before.arrived_tokens) / elapsed_s,
            waiting_requests=waiting.requests,
            waiting_tokens=round(share * waiting.tokens) + load.queued_tokens,
            in_flight_requests=load.in_flight_requests,
            kv_share=load.kv_share,
            first_tokens=added(counted.first_tokens, before.first_tokens),
            inter_tokens=added(counted.inter_tokens, before.inter_tokens),
            active_replicas=sum(replica.state is ReplicaState.ACTIVE for replica in replicas),
            lead_s=measured_lead_s(replicas),
            guess_tokens_per_s=guess_tokens_per_s,
        )


def added(now: Sequence[int], before: Sequence[int]) -> tuple[int, ...]:
    """What each count grew by; those that there were not before began at zero."""
    known = (*before, *[0] * (len(now) - len(before)))
    return tuple(count - earlier for count, earlier in zip(now, known, strict=False))


def pool_shares(deployments: Sequence[Deployment]) -> dict[str, float]:
    """Each deployment's share of its model's traffic: equal among those that scale."""
    counts: dict[str, int] = {}
    for deployment in deployments:
        counts[deployment.parent_id] = counts.get(deployment.parent_id, 0) + 1
    return {deployment.id: 1.0 / counts[deployment.parent_id] for deployment in deployments}


def claim_of(deployment: Deployment, found: Mapping[str, tuple[Sample, Proposal]]) -> Claim:
    """What a deployment asks for; one that does not scale asks for what it has."""
    policy = deployment.autoscaling
    if policy is None:
        return Claim(deployment.id, deployment.replicas, deployment.replicas, 1, priority_fixed)
    known = found.get(deployment.id)
    wanted = deployment.replicas if known is None else known[1].replicas
    lower = min(policy.min, wanted) if known is None else min(known[1].min, wanted)
    return Claim(deployment.id, wanted, lower, policy.devices, policy.priority)


priority_fixed = 1_000_000  # a deployment with a fixed number is not scaled by others' needs


def measured_lead_s(replicas: Sequence[Replica]) -> float | None:
    """How long the slowest of the replicas took from launch to first token."""
    starts = [
        replica.first_token_time - replica.launch_time
        for replica in replicas
        if replica.first_token_time is not None and replica.launch_time is not None
    ]
    return max(starts, default=None)
