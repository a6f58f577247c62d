"""What a workload and its pods mean for a launch. Pure.

    workload without replicas         ended: its start was cut short, and is repeated
    no pod yet, or a pod that waits   running, with what it waits for
    a container that ended            ended, even if the cluster has started it again since: one
                                      launch is one start, and the control plane paces the next
    a container that cannot start     ended, with the reason

A pod that goes with its node is no end: the cluster makes another.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.launchers.kubernetes.parts import KubernetesObject
from headrace.launchers.protocol import Launch, LaunchState

launch_label = "headrace.dev/launch"
name_annotation = "headrace.dev/launch-name"
signal_base = 128  # container runtimes report a signal as shells do
signal_max = 64

# Reasons that do not pass by themselves: the kubelet has tried, or never will.
hopeless_reasons = frozenset(
    (
        "ImagePullBackOff",
        "InvalidImageName",
        "ErrImageNeverPull",
        "CreateContainerConfigError",
        "CreateContainerError",
        "RunContainerError",
    )
)


@dataclass(frozen=True, slots=True)
class LogSource:
    """Whose output has a launch's last line."""

    pod: str
    previous: bool  # of the container before the present one
    restart_count: int


@dataclass(frozen=True, slots=True)
class Look:
    """A launch as the cluster has it; `launch.last_line` is still without the output's."""

    launch: Launch
    log: LogSource | None = None


def look_at(workload: KubernetesObject, pods: Sequence[KubernetesObject]) -> Look:
    """The launch of a workload, by those pods that are its own."""
    launch_id = launch_id_of(workload)
    name = workload["metadata"].get("annotations", {}).get(name_annotation, "")
    if not workload["spec"].get("replicas", 1):
        words = "its start was cut short"
        return Look(Launch(launch_id, name, LaunchState.ENDED, None, words))
    own = [pod for pod in pods if launch_id_of(pod) == launch_id and not is_leaving(pod)]
    for pod in own:
        for status in pod.get("status", {}).get("containerStatuses", ()):
            look = ended_look(launch_id, name, pod, status)
            if look is not None:
                return look
    waits = next((words for pod in own for words in unscheduled_words(pod)), "")
    return Look(Launch(launch_id, name, LaunchState.RUNNING, None, waits))


def sources_of(workload: KubernetesObject, pods: Sequence[KubernetesObject]) -> list[LogSource]:
    """Whose output a launch's is while it runs; of several pods the leader's first."""
    launch_id = launch_id_of(workload)
    own = [pod for pod in pods if launch_id_of(pod) == launch_id and not is_leaving(pod)]
    names = sorted(pod["metadata"]["name"] for pod in own)  # a group's leader has no number behind
    return [LogSource(name, previous=False, restart_count=0) for name in names]


def launch_id_of(thing: KubernetesObject) -> str:
    """The launch that an object belongs to; empty if it belongs to none."""
    return str(thing["metadata"].get("labels", {}).get(launch_label, ""))


def is_leaving(pod: KubernetesObject) -> bool:
    """Whether the cluster takes this pod away, or has: another comes."""
    evicted = pod.get("status", {}).get("phase") == "Failed"
    return "deletionTimestamp" in pod["metadata"] or evicted


def ended_look(
    launch_id: str, name: str, pod: KubernetesObject, status: dict[str, Any]
) -> Look | None:
    """An ended launch, if this container's status means one."""
    restart_count = int(status.get("restartCount", 0))
    now = status.get("state", {})
    ended = now.get("terminated") or status.get("lastState", {}).get("terminated")
    if ended:
        source = LogSource(pod["metadata"]["name"], "terminated" not in now, restart_count)
        reason = ended.get("reason", "")
        words = "" if reason in ("", "Error", "Completed") else reason
        if ended.get("message"):
            words = f"{words}: {ended['message']}".removeprefix(": ")
        exit_status = status_of(int(ended["exitCode"]))
        return Look(Launch(launch_id, name, LaunchState.ENDED, exit_status, words), source)
    waiting = now.get("waiting", {})
    if waiting.get("reason") in hopeless_reasons:
        words = f"{waiting['reason']}: {waiting.get('message', '')}".removesuffix(": ")
        return Look(Launch(launch_id, name, LaunchState.ENDED, None, words))
    return None


def status_of(exit_code: int) -> int:
    """An exit code in the launcher protocol's terms."""
    number = exit_code - signal_base
    return -number if 0 < number <= signal_max else exit_code


def unscheduled_words(pod: KubernetesObject) -> Iterator[str]:
    """Why a pod has no node yet."""
    for condition in pod.get("status", {}).get("conditions", ()):
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            yield f"{condition.get('reason', '')}: {condition.get('message', '')}"
