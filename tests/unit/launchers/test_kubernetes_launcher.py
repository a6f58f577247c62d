"""The Kubernetes launcher against an API server that fails as real ones do."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import kubernetes_validate
import pytest

from headrace.base.clock import SystemClock
from headrace.base.errors import ConfigurationError, Conflict, SetupError, Unavailable
from headrace.launchers.kubernetes import launcher as module
from headrace.launchers.kubernetes.launcher import KubernetesLauncher, KubernetesSite, object_name
from headrace.launchers.protocol import Launch, LaunchSpec, LaunchState, Resources
from headrace.sim.kubernetes_cluster import FakeCluster
from headrace.sim.kubernetes_server import KubernetesServer

name = "rep_01k8zz"
namespace = "inference"
pods_path = f"/api/v1/namespaces/{namespace}/pods"


@pytest.fixture
def server() -> Iterator[KubernetesServer]:
    with KubernetesServer() as made:
        yield made


@pytest.fixture
def launcher(server: KubernetesServer) -> Iterator[KubernetesLauncher]:
    made = open_launcher(server)
    yield made
    made.close()


def open_launcher(server: KubernetesServer, **more: Any) -> KubernetesLauncher:
    site = KubernetesSite(namespace, "headrace:1", server=server.url, **more)
    return KubernetesLauncher(site, SystemClock(), look_interval_s=0.01)


def spec(**changes: Any) -> LaunchSpec:
    values: dict[str, Any] = {
        "name": name,
        "argv": ("engine", "--port", "8000"),
        "environment": {"ENGINE_KEY": "a secret"},
        **changes,
    }
    return LaunchSpec(**values)


def report(server: KubernetesServer, status: dict[str, Any]) -> None:
    """Be the kubelet of the only pod."""

    def act(cluster: FakeCluster) -> None:
        (pod,) = cluster.pods()
        cluster.set_status(pods_path, pod["metadata"]["name"], status)

    server.change(act)


def container(state: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"containerStatuses": [{"name": "engine", "state": state, **more}]}


def wait_for(launcher: KubernetesLauncher, condition: Callable[[Launch], bool]) -> Launch:
    pause = threading.Event()
    while True:  # the test's own timeout bounds it
        (launch,) = launcher.list()
        if condition(launch):
            return launch
        pause.wait(0.01)


def has_ended(launch: Launch) -> bool:
    return launch.state is LaunchState.ENDED


def test_every_object_is_valid_and_goes_with_the_launch(
    server: KubernetesServer, launcher: KubernetesLauncher
) -> None:
    launch_id = launcher.start(spec(resources=Resources(memory_bytes=1 << 30, device_count=2)))

    kinds = {thing["kind"] for thing in server.cluster.objects.values()}
    assert kinds == {
        "Deployment", "Secret", "Service", "NetworkPolicy", "PodDisruptionBudget", "Pod"
    }  # fmt: skip
    version = kubernetes_validate.latest_version()
    for thing in server.cluster.objects.values():
        if thing["kind"] != "Pod":
            kubernetes_validate.validate(thing, version, strict=True)
    launcher.stop(launch_id, 1.0)
    assert server.cluster.objects == {}


def test_a_replica_over_several_nodes_is_a_group_of_pods_of_a_leader_worker_set(
    server: KubernetesServer, launcher: KubernetesLauncher
) -> None:
    launcher.start(spec(resources=Resources(device_count=8, node_count=2)))
    by_kind = {thing["kind"]: thing for thing in server.cluster.objects.values()}
    assert "Deployment" not in by_kind
    group = by_kind["LeaderWorkerSet"]["spec"]["leaderWorkerTemplate"]
    assert group["size"] == 2
    (container_spec,) = group["workerTemplate"]["spec"]["containers"]
    assert container_spec["resources"]["limits"]["nvidia.com/gpu"] == "8"
    selector = by_kind["Service"]["spec"]["selector"]
    assert selector["leaderworkerset.sigs.k8s.io/worker-index"] == "0"


def test_a_replica_goes_where_the_operator_keeps_room_and_weights(
    server: KubernetesServer,
) -> None:
    chosen = {
        "model_host_path": "/mnt/models",
        "model_path": "/cache",
        "topology_key": "rack",
        "tolerated_taints": ("gpu",),
    }
    server.cluster.has_groups = True
    made = open_launcher(server, **chosen)
    try:
        made.start(spec(resources=Resources(node_count=2)))
        (group,) = (
            each for each in server.cluster.objects.values() if each["kind"] == "LeaderWorkerSet"
        )
    finally:
        made.close()
    annotations = group["metadata"]["annotations"]
    assert annotations["leaderworkerset.sigs.k8s.io/exclusive-topology"] == "rack"
    templates = group["spec"]["leaderWorkerTemplate"]
    for name_of_template in ("leaderTemplate", "workerTemplate"):
        pod = templates[name_of_template]["spec"]
        assert pod["tolerations"] == [{"key": "gpu", "operator": "Exists"}]
        weights = {"path": "/mnt/models", "type": "DirectoryOrCreate"}
        assert {"name": "models", "hostPath": weights} in pod["volumes"]
        mounts = pod["containers"][0]["volumeMounts"]
        assert {"name": "models", "mountPath": "/cache"} in mounts


def test_weights_are_in_one_place() -> None:
    with pytest.raises(ConfigurationError, match="not both"):
        KubernetesSite(namespace, "headrace:1", model_claim="models", model_host_path="/models")


def test_the_address_is_that_of_the_service(
    server: KubernetesServer, launcher: KubernetesLauncher
) -> None:
    place = launcher.place(name)
    launcher.start(spec())

    (service,) = [t for t in server.cluster.objects.values() if t["kind"] == "Service"]
    host = f"{service['metadata']['name']}.{namespace}"
    (port,) = [port["port"] for port in service["spec"]["ports"]]
    assert place.address == f"http://{host}:{port}"
    assert (place.listen_host, place.port) == ("0.0.0.0", port)


def test_names_that_are_no_dns_labels_get_one_of_their_own() -> None:
    names = ["rep_1", "rep-1", "rep.1", "Rep-1", "x" * 128, "1"]
    made = [object_name(each) for each in names]

    assert len(set(made)) == len(names)
    assert made[1] == "rep-1"
    assert all(module.dns_label.fullmatch(each) for each in made)


def test_an_image_that_cannot_be_pulled_ends_the_launch_with_the_reason(
    server: KubernetesServer, launcher: KubernetesLauncher
) -> None:
    launcher.start(spec())
    message = 'Back-off pulling image "engines/none"'
    report(server, container({"waiting": {"reason": "ImagePullBackOff", "message": message}}))

    launch = wait_for(launcher, has_ended)
    assert (launch.exit_status, launch.last_line) == (None, f"ImagePullBackOff: {message}")


def test_a_container_without_enough_memory_tells_so(
    server: KubernetesServer, launcher: KubernetesLauncher
) -> None:
    launcher.start(spec())
    (pod,) = server.cluster.pods()
    server.cluster.logs[pod["metadata"]["name"], False] = "loading layer 7\n\n"
    report(server, container({"terminated": {"reason": "OOMKilled", "exitCode": 137}}))

    launch = wait_for(launcher, has_ended)
    assert (launch.exit_status, launch.last_line) == (-9, "OOMKilled: loading layer 7")


def test_a_container_that_the_cluster_started_again_has_ended_all_the_same(
    server: KubernetesServer, launcher: KubernetesLauncher
) -> None:
    launcher.start(spec())
    (pod,) = server.cluster.pods()
    server.cluster.logs[pod["metadata"]["name"], True] = "no such model\n"
    ended = {"terminated": {"reason": "Error", "exitCode": 3}}
    report(server, container({"running": {}}, restartCount=1, lastState=ended))

    launch = wait_for(launcher, has_ended)
    assert (launch.exit_status, launch.last_line) == (3, "no such model")


def test_a_launch_that_no_node_has_room_for_runs_and_says_what_it_waits_for(
    server: KubernetesServer, launcher: KubernetesLauncher
) -> None:
    launcher.start(spec())
    message = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    report(server, {"phase": "Pending", "conditions": [{**condition, "message": message}]})

    launch = wait_for(launcher, lambda launch: bool(launch.last_line))
    assert launch.state is LaunchState.RUNNING
    assert launch.last_line == f"Unschedulable: {message}"


def test_a_pod_that_goes_with_its_node_is_replaced_and_the_launch_runs_on(
    server: KubernetesServer, launcher: KubernetesLauncher
) -> None:
    launch_id = launcher.start(spec())
    (pod,) = server.cluster.pods()
    server.change(lambda c: c.delete(pods_path, pod["metadata"]["name"], "Background", None))

    assert [p["metadata"]["name"] for p in server.cluster.pods()] != [pod["metadata"]["name"]]
    assert launcher.list() == [Launch(launch_id, name, LaunchState.RUNNING)]


def test_pods_of_a_lost_node_are_given_up_after_their_grace(
    server: KubernetesServer, launcher: KubernetesLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "gone_slack_s", 0.0)
    launch_id = launcher.start(spec())
    server.cluster.holds_pods = True
    launcher.stop(launch_id, 0.6)

    assert server.cluster.objects == {}


def test_conflicts_and_a_server_that_restarts_do_not_fail_a_start(
    server: KubernetesServer, launcher: KubernetesLauncher
) -> None:
    server.refuse("PATCH", 409, count=2)
    server.refuse("PATCH", 503)
    launch_id = launcher.start(spec())

    assert launcher.list() == [Launch(launch_id, name, LaunchState.RUNNING)]


def test_a_refused_object_is_a_clear_error_and_leaves_nothing(
    server: KubernetesServer, launcher: KubernetesLauncher
) -> None:
    launcher.list()
    server.change(lambda _: server._refusals.extend([("PATCH", 422)]))

    with pytest.raises(SetupError, match=f"cannot start {name}.*422"):
        launcher.start(spec())
    assert server.cluster.objects == {}
    assert launcher.list() == []


def test_a_start_that_was_cut_short_is_an_ended_launch_that_the_next_replaces(
    server: KubernetesServer, launcher: KubernetesLauncher
) -> None:
    launcher.start(spec())
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments"
    cut = {"metadata": {}, "spec": {"replicas": 0}}
    server.change(lambda cluster: cluster.apply(path, object_name(name), cut))

    launch = wait_for(launcher, has_ended)
    assert launch.last_line == "its start was cut short"
    launch_id = launcher.start(spec())
    assert launcher.list() == [Launch(launch_id, name, LaunchState.RUNNING)]


def test_looking_costs_no_request_while_nothing_changes(
    server: KubernetesServer, launcher: KubernetesLauncher
) -> None:
    server.cluster.has_groups = True
    launcher.start(spec())
    launcher.list()
    lists = [request for request in server.requests if "watch" not in request[1]]
    for _ in range(10):
        launcher.list()

    assert [request for request in server.requests if "watch" not in request[1]] == lists


@pytest.mark.parametrize("trouble", ["dropped", "gone"])
def test_what_happened_while_no_watch_was_open_is_seen(
    server: KubernetesServer, launcher: KubernetesLauncher, trouble: str
) -> None:
    launcher.start(spec())
    launcher.list()
    if trouble == "gone":
        server.change(FakeCluster.compact)
    server.drop_watches()
    report(server, container({"terminated": {"reason": "Error", "exitCode": 1}}))
    if trouble == "gone":
        server.change(FakeCluster.compact)

    assert wait_for(launcher, has_ended).exit_status == 1


def test_a_server_that_does_not_answer_is_told_and_passes(
    server: KubernetesServer, launcher: KubernetesLauncher
) -> None:
    launch_id = launcher.start(spec())
    server.refuse("GET", 503)

    with pytest.raises(Unavailable):
        launcher.list()
    assert [launch.launch_id for launch in launcher.list()] == [launch_id]


def test_two_control_planes_see_the_same_launches(
    server: KubernetesServer, launcher: KubernetesLauncher
) -> None:
    second = open_launcher(server)
    try:
        assert second.list() == []
        launch_id = launcher.start(spec())
        assert wait_until_one(second).launch_id == launch_id
        with pytest.raises(Conflict):
            second.start(spec())
    finally:
        second.close()


def wait_until_one(launcher: KubernetesLauncher) -> Launch:
    pause = threading.Event()
    while not (launches := launcher.list()):
        pause.wait(0.01)
    return launches[0]


def test_no_server_is_an_error_that_says_so() -> None:
    site = KubernetesSite(namespace, "headrace:1", server="http://127.0.0.1:1")
    launcher = KubernetesLauncher(site, SystemClock())
    try:
        with pytest.raises(Unavailable, match="cannot be reached"):
            launcher.list()
    finally:
        launcher.close()
