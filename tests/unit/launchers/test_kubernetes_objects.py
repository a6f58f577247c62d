"""Objects for Kubernetes against the published schemas, and what they must say."""

import base64
from collections.abc import Sequence
from typing import Any

import kubernetes_validate
import pytest
import yaml

from headrace.base.errors import ConfigurationError
from headrace.cli.main import main
from headrace.control.probe_site import live_path, ready_path
from headrace.launchers.kubernetes.platform_objects import Installation, platform_objects
from headrace.launchers.kubernetes.replica_objects import ModelCache, ReplicaPod, replica_objects

key = "the-engines-own-key"
custom_kinds = {"LeaderWorkerSet", "HTTPRoute"}  # not in the schemas of Kubernetes itself


def pod(**changes: Any) -> ReplicaPod:
    values = {
        "name": "rep-1",
        "namespace": "inference",
        "image": "engines/vllm:1",
        "argv": ("vllm", "serve", "/models/a"),
        "port": 8000,
        "environment": {"HEADRACE_API_KEY": key},
        "device_count": 8,
        **changes,
    }
    return ReplicaPod(**values)


def installation(**changes: Any) -> Installation:
    values = {
        "namespace": "inference",
        "image": "headrace:1",
        "database_url": "postgresql://user:word@db/headrace",
        "limits_url": "",
        "admin_token": "a-token",
        "pepper_base64": base64.b64encode(b"p" * 32).decode(),
        **changes,
    }
    return Installation(**values)


def of_kind(objects: Sequence[dict[str, Any]], kind: str) -> dict[str, Any]:
    (found,) = [each for each in objects if each["kind"] == kind]
    return found


@pytest.mark.parametrize(
    "objects",
    [
        replica_objects(pod()),
        replica_objects(pod(cache=ModelCache.CLAIM, cache_source="models")),
        replica_objects(pod(cache=ModelCache.HOST_PATH, cache_source="/var/models")),
        replica_objects(pod(node_count=2, topology_key="rack", node_labels={"gpu": "h100"})),
        replica_objects(pod(gateway_ports=(9000,), peer_ports=(8001,), lora_claim="adapters")),
        replica_objects(pod(device_count=0, tolerations=({"key": "gpu", "operator": "Exists"},))),
        platform_objects(installation()),
        platform_objects(installation(otlp_endpoint="http://otel:4318", lora_claim="adapters")),
        platform_objects(installation(hostname="api.example.com", gateway_class="edge/public")),
    ],
)
def test_every_object_fits_the_schema(objects: list[dict[str, Any]]) -> None:
    for each in objects:
        if each["kind"] not in custom_kinds:
            kubernetes_validate.validate(each, kubernetes_validate.latest_version(), strict=True)


def test_a_group_of_pods_has_what_the_leader_worker_set_api_documents() -> None:
    """Its schema is in no package: pods are checked as a Deployment's, its own fields by name."""
    objects = replica_objects(pod(node_count=2, topology_key="rack", worker_argv=("help",)))
    group = of_kind(objects, "LeaderWorkerSet")
    assert group["apiVersion"] == "leaderworkerset.x-k8s.io/v1"
    spec, deployment = group["spec"], of_kind(replica_objects(pod()), "Deployment")
    assert set(spec) == {"replicas", "networkConfig", "leaderWorkerTemplate"}
    # A shared subdomain's headless Service would have the name of ours.
    assert spec["networkConfig"] == {"subdomainPolicy": "UniquePerReplica"}
    template = spec["leaderWorkerTemplate"]
    assert set(template) == {"size", "restartPolicy", "leaderTemplate", "workerTemplate"}
    assert template["restartPolicy"] == "RecreateGroupOnPodRestart"
    for name in ("leaderTemplate", "workerTemplate"):
        as_deployment = {**deployment, "spec": {**deployment["spec"], "template": template[name]}}
        kubernetes_validate.validate(
            as_deployment, kubernetes_validate.latest_version(), strict=True
        )


def test_a_route_has_what_the_gateway_api_documents() -> None:
    """Its schema is in no Python package: its fields by name and kind."""
    chosen = installation(hostname="api.example.com", gateway_class="edge/public")
    route = of_kind(platform_objects(chosen), "HTTPRoute")
    assert route["apiVersion"] == "gateway.networking.k8s.io/v1"
    spec = route["spec"]
    assert set(spec) == {"parentRefs", "hostnames", "rules"}
    assert spec["parentRefs"] == [{"name": "public", "namespace": "edge"}]
    (rule,) = spec["rules"]
    assert set(rule) == {"matches", "backendRefs", "timeouts"}
    assert rule["matches"] == [{"path": {"type": "PathPrefix", "value": "/v1"}}]
    (service,) = [
        each
        for each in platform_objects(chosen)
        if each["kind"] == "Service" and each["metadata"]["name"] == rule["backendRefs"][0]["name"]
    ]
    assert rule["backendRefs"][0]["port"] in [port["port"] for port in service["spec"]["ports"]]
    assert rule["timeouts"] == {"request": "0s"}  # a duration of the Gateway API: no time-out


def test_the_engines_key_is_in_a_secret_alone() -> None:
    objects = replica_objects(pod())
    assert of_kind(objects, "Secret")["stringData"] == {"HEADRACE_API_KEY": key}
    others = [each for each in objects if each["kind"] != "Secret"]
    assert key not in repr(others)


def test_only_gateways_and_the_control_plane_reach_an_engine() -> None:
    replica, platform = replica_objects(pod()), platform_objects(installation())
    policy = of_kind(replica, "NetworkPolicy")["spec"]
    (rule,) = policy["ingress"]
    allowed = [peer["podSelector"]["matchLabels"] for peer in rule["from"]]
    gateways = of_kind(platform, "StatefulSet")["spec"]["template"]["metadata"]["labels"]
    control = of_kind(platform, "Deployment")["spec"]["template"]["metadata"]["labels"]
    assert allowed == [gateways, control]
    engine = of_kind(replica, "Deployment")["spec"]["template"]["metadata"]["labels"]
    assert policy["podSelector"]["matchLabels"].items() <= engine.items()


def test_other_replicas_fetch_kv_at_its_port_and_nobody_else_does() -> None:
    replica = replica_objects(pod(gateway_ports=(9000,), peer_ports=(8001,)))
    calls, fetches = of_kind(replica, "NetworkPolicy")["spec"]["ingress"]
    assert [each["port"] for each in calls["ports"]] == [8000, 9000]
    assert [each["port"] for each in fetches["ports"]] == [8001]
    (peers,) = (peer["podSelector"]["matchLabels"] for peer in fetches["from"])
    engine = of_kind(replica, "Deployment")["spec"]["template"]
    assert peers.items() <= engine["metadata"]["labels"].items()
    assert peers["app.kubernetes.io/component"] == "engine"
    ports = {each["port"] for each in of_kind(replica, "Service")["spec"]["ports"]}
    opened = engine["spec"]["containers"][0]["ports"]
    assert ports == {each["containerPort"] for each in opened} == {8000, 9000, 8001}


def test_adapters_are_mounted_for_reading_and_spans_have_an_address() -> None:
    engine = of_kind(replica_objects(pod(lora_claim="adapters")), "Deployment")
    spec = engine["spec"]["template"]["spec"]
    assert {"name": "adapters", "mountPath": "/adapters", "readOnly": True} in spec["containers"][
        0
    ]["volumeMounts"]
    chosen = installation(otlp_endpoint="http://otel:4318", lora_claim="adapters")
    for kind in ("Deployment", "StatefulSet"):
        (container,) = of_kind(platform_objects(chosen), kind)["spec"]["template"]["spec"][
            "containers"
        ]
        told = {each["name"]: each.get("value") for each in container["env"]}
        assert told["HEADRACE_OTLP_ENDPOINT"] == "http://otel:4318"
    control = of_kind(platform_objects(chosen), "Deployment")["spec"]["template"]["spec"]
    assert "--kubernetes-lora-claim" in control["containers"][0]["command"]


def test_a_service_leads_to_the_pod_that_answers() -> None:
    one, several = replica_objects(pod()), replica_objects(pod(node_count=4))
    labels = of_kind(one, "Deployment")["spec"]["template"]["metadata"]["labels"]
    assert of_kind(one, "Service")["spec"]["selector"] == labels
    group = of_kind(several, "LeaderWorkerSet")["spec"]["leaderWorkerTemplate"]
    assert group["size"] == 4
    leader, worker = (
        group[name]["spec"]["containers"][0] for name in ("leaderTemplate", "workerTemplate")
    )
    assert "readinessProbe" in leader
    assert "readinessProbe" not in worker
    selector = of_kind(several, "Service")["spec"]["selector"]
    assert selector["leaderworkerset.sigs.k8s.io/worker-index"] == "0"


def test_pods_of_one_replica_run_their_own_command_and_reach_each_other_at_all_ports() -> None:
    several = replica_objects(pod(node_count=2, worker_argv=("help", "$(LWS_WORKER_INDEX)")))
    group = of_kind(several, "LeaderWorkerSet")["spec"]["leaderWorkerTemplate"]
    commands = [
        group[name]["spec"]["containers"][0]["command"]
        for name in ("leaderTemplate", "workerTemplate")
    ]
    assert commands == [list(pod().argv), ["help", "$(LWS_WORKER_INDEX)"]]
    labels = group["workerTemplate"]["metadata"]["labels"]
    rules = of_kind(several, "NetworkPolicy")["spec"]["ingress"]
    assert {"from": [{"podSelector": {"matchLabels": labels}}]} in rules
    alone = of_kind(replica_objects(pod()), "NetworkPolicy")["spec"]["ingress"]
    assert all("ports" in rule for rule in alone)


def test_devices_are_asked_for_and_bounded() -> None:
    container = of_kind(replica_objects(pod()), "Deployment")["spec"]["template"]["spec"][
        "containers"
    ][0]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "8"


@pytest.mark.parametrize(
    ("cache", "source", "volume"),
    [
        (ModelCache.EMPTY_DIR, "", {"emptyDir": {}}),
        (ModelCache.CLAIM, "models", {"persistentVolumeClaim": {"claimName": "models"}}),
        (
            ModelCache.HOST_PATH,
            "/var/models",
            {"hostPath": {"path": "/var/models", "type": "DirectoryOrCreate"}},
        ),
    ],
)
def test_weights_are_kept_where_the_operator_chose(
    cache: ModelCache, source: str, volume: dict[str, Any]
) -> None:
    chosen = pod(cache=cache, cache_source=source)
    spec = of_kind(replica_objects(chosen), "Deployment")["spec"]["template"]["spec"]
    assert {"name": "models", **volume} in spec["volumes"]
    mounts = {each["name"]: each["mountPath"] for each in spec["containers"][0]["volumeMounts"]}
    assert mounts["models"] == chosen.cache_path


def test_a_replica_goes_to_nodes_with_its_labels_and_into_one_topology() -> None:
    objects = replica_objects(pod(node_count=2, topology_key="rack", node_labels={"gpu": "h100"}))
    group = of_kind(objects, "LeaderWorkerSet")
    kept_together = "leaderworkerset.sigs.k8s.io/exclusive-topology"
    assert group["metadata"]["annotations"] == {kept_together: "rack"}
    template = group["spec"]["leaderWorkerTemplate"]
    for name in ("leaderTemplate", "workerTemplate"):
        assert template[name]["spec"]["nodeSelector"] == {"gpu": "h100"}


def test_an_engine_may_load_for_long_and_is_ready_by_its_own_word() -> None:
    chosen = pod(readiness_path="/readyz")
    spec = of_kind(replica_objects(chosen), "Deployment")["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    for name in ("startupProbe", "readinessProbe"):
        asked = container[name]["httpGet"]
        assert (asked["path"], asked["port"]) == ("/readyz", chosen.port)
    start = container["startupProbe"]
    assert start["periodSeconds"] * start["failureThreshold"] >= 1800
    assert "livenessProbe" not in container  # whether it hangs the control plane decides


def test_drains_of_nodes_take_few_pods_at_once() -> None:
    platform = platform_objects(installation())
    budgets = [each for each in platform if each["kind"] == "PodDisruptionBudget"]
    gateways = of_kind(platform, "StatefulSet")["spec"]["selector"]["matchLabels"]
    assert gateways in [each["spec"]["selector"]["matchLabels"] for each in budgets]
    engine = replica_objects(pod())
    labels = of_kind(engine, "Deployment")["spec"]["template"]["metadata"]["labels"]
    budget = of_kind(engine, "PodDisruptionBudget")["spec"]
    assert budget["selector"]["matchLabels"].items() <= labels.items()
    assert budget["maxUnavailable"] < 2


def test_a_gateways_journal_outlives_its_pod() -> None:
    gateways = of_kind(platform_objects(installation()), "StatefulSet")["spec"]
    assert gateways["volumeClaimTemplates"][0]["metadata"]["name"] == "data"
    assert set(gateways["persistentVolumeClaimRetentionPolicy"].values()) == {"Retain"}


def test_a_cache_without_its_source_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="needs its source"):
        pod(cache=ModelCache.CLAIM)


def test_no_number_is_named_for_what_the_cluster_scales() -> None:
    """Applied again it would undo what the cluster's autoscaler did."""
    objects = platform_objects(installation(gateways=3, gateways_max=9))
    named = {
        (each["kind"], each["metadata"]["name"]): each["spec"] for each in objects if "spec" in each
    }
    scalers = [spec for (kind, _), spec in named.items() if kind == "HorizontalPodAutoscaler"]
    assert [(spec["minReplicas"], spec["maxReplicas"]) for spec in scalers] == [(3, 9)]
    for spec in scalers:
        target = spec["scaleTargetRef"]
        assert "replicas" not in named[target["kind"], target["name"]]


def test_the_command_writes_yaml_that_reads_back(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--image", "headrace:1", "--database-url", "postgresql://u:p@db/headrace"]
    with pytest.raises(SystemExit) as ended:  # how the command line's library ends a command
        main(["manifests", *arguments, "--hostname", "api.example.com"])
    assert not ended.value.code
    written = capsys.readouterr().out
    assert "&id" not in written  # what occurs twice is written out, for whoever edits it
    objects = list(yaml.safe_load_all(written))
    assert of_kind(objects, "HTTPRoute")["spec"]["hostnames"] == ["api.example.com"]
    pepper = of_kind(objects, "Secret")["data"]["pepper"]
    assert len(base64.b64decode(pepper)) == 32

    with pytest.raises(SystemExit):
        main(["manifests", *arguments, "--hostname", "api.example.com", "--without-secret"])
    later = list(yaml.safe_load_all(capsys.readouterr().out))
    assert later == [each for each in objects if each["kind"] != "Secret"]


def test_the_control_plane_launches_replicas_on_the_cluster_it_runs_in(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ["--image", "headrace:1", "--database-url", "postgresql://u:p@db/headrace"]
    with pytest.raises(SystemExit):
        main(["manifests", *arguments, "--model-storage-class", "shared"])
    objects = list(yaml.safe_load_all(capsys.readouterr().out))
    (container,) = of_kind(objects, "Deployment")["spec"]["template"]["spec"]["containers"]
    command = container["command"]

    def value(option: str) -> str:
        return str(command[command.index(option) + 1])

    assert value("--launcher") == "kubernetes"
    assert value("--kubernetes-image") == "headrace:1"
    claim = of_kind(objects, "PersistentVolumeClaim")
    assert value("--kubernetes-model-claim") == claim["metadata"]["name"]
    assert claim["spec"]["storageClassName"] == "shared"
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts["models"] == value("--cache-dir")


def test_the_control_plane_may_do_what_its_launcher_asks_for() -> None:
    rules = of_kind(platform_objects(installation()), "Role")["rules"]
    allowed = {
        (resource, verb)
        for rule in rules
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    applied = ("secrets", "services", "deployments", "networkpolicies", "poddisruptionbudgets")
    assert {(each, "patch") for each in applied} <= allowed
    assert {("pods", "delete"), ("pods/log", "get"), ("deployments", "watch")} <= allowed


def test_several_machines_need_postgresql(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["manifests", "--image", "i", "--database-url", "sqlite:///x"]) == 1
    assert "share PostgreSQL" in capsys.readouterr().err


def test_pods_of_the_platform_are_probed_where_they_answer() -> None:
    objects = platform_objects(installation())
    pods = [each for each in objects if each["kind"] in ("Deployment", "StatefulSet")]
    probed = {
        each["metadata"]["name"]: [
            container[probe]["httpGet"]["path"]
            for container in each["spec"]["template"]["spec"]["containers"]
            for probe in ("livenessProbe", "readinessProbe")
        ]
        for each in pods
    }
    answered = [live_path, ready_path]
    assert probed == {"headrace-control": answered, "headrace-gateway": answered}
