"""Custom resources that headrace writes against schemas of them, in our own words.

No Python package has those. LeaderWorkerSet is written after the API's published types
(leaderworkerset.x-k8s.io/v1), HTTPRoute after the Gateway API's (gateway.networking.k8s.io/v1), as
far as an object of ours may go: every field is named, none beside them is allowed. Pod templates
and metadata are checked by Kubernetes' own schemas.
"""

import base64
import copy
from collections.abc import Mapping
from typing import Any

import jsonschema
import kubernetes_validate
import pytest

from headrace.launchers.kubernetes.platform_objects import Installation, platform_objects
from headrace.launchers.kubernetes.replica_objects import ReplicaPod, replica_objects

Schema = dict[str, Any]

int32 = {"type": "integer", "minimum": -(2**31), "maximum": 2**31 - 1}
integer_or_percentage = {"anyOf": [int32, {"type": "string", "pattern": r"^[0-9]+%?$"}]}
label = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
duration = {"type": "string", "pattern": r"^([0-9]{1,5}(h|m|s|ms)){1,4}$"}  # GEP-2257
object_name = {"type": "string", "minLength": 1, "maxLength": 253}
port = {"type": "integer", "minimum": 1, "maximum": 65535}


def fields(required: tuple[str, ...] = (), **properties: Any) -> Schema:
    """An object with these fields and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": [*required],
        "additionalProperties": False,
    }


def one_of(*words: str) -> Schema:
    return {"enum": [*words]}


def resource(api_version: str, kind: str, spec: Schema) -> Schema:
    return fields(
        ("apiVersion", "kind", "metadata", "spec"),
        apiVersion={"const": api_version},
        kind={"const": kind},
        metadata={"type": "object"},
        spec=spec,
    )


leader_worker_set = resource(
    "leaderworkerset.x-k8s.io/v1",
    "LeaderWorkerSet",
    fields(
        ("leaderWorkerTemplate",),
        replicas=int32,
        startupPolicy=one_of("LeaderCreated", "LeaderReady"),
        networkConfig=fields(
            ("subdomainPolicy",), subdomainPolicy=one_of("Shared", "UniquePerReplica")
        ),
        rolloutStrategy=fields(
            ("type",),
            type=one_of("RollingUpdate"),
            rollingUpdateConfiguration=fields(
                partition=int32,
                maxUnavailable=integer_or_percentage,
                maxSurge=integer_or_percentage,
            ),
        ),
        leaderWorkerTemplate=fields(
            ("workerTemplate",),
            size=int32,
            restartPolicy=one_of(
                "Default", "RecreateGroupOnPodRestart", "RecreateGroupAfterStart", "None"
            ),
            subGroupPolicy=fields(
                subGroupPolicyType=one_of("LeaderWorker", "LeaderExcluded"), subGroupSize=int32
            ),
            leaderTemplate={"type": "object"},
            workerTemplate={"type": "object"},
        ),
    ),
)

http_route = resource(
    "gateway.networking.k8s.io/v1",
    "HTTPRoute",
    fields(
        parentRefs={
            "type": "array",
            "maxItems": 32,
            "items": fields(
                ("name",),
                group={"type": "string", "maxLength": 253},
                kind={"type": "string", "minLength": 1, "maxLength": 63},
                name=object_name,
                namespace={"type": "string", "pattern": rf"^{label}$"},
                sectionName=object_name,
                port=port,
            ),
        },
        hostnames={
            "type": "array",
            "maxItems": 16,
            "items": {
                "type": "string",
                "maxLength": 253,
                "pattern": rf"^(\*\.)?{label}(\.{label})*$",
            },
        },
        rules={
            "type": "array",
            "minItems": 1,
            "maxItems": 16,
            "items": fields(
                name=object_name,
                matches={
                    "type": "array",
                    "maxItems": 64,
                    "items": fields(
                        path=fields(
                            type=one_of("Exact", "PathPrefix", "RegularExpression"),
                            value={"type": "string", "maxLength": 1024, "pattern": "^/"},
                        )
                    ),
                },
                backendRefs={
                    "type": "array",
                    "maxItems": 16,
                    "items": fields(
                        ("name",),
                        group={"type": "string", "maxLength": 253},
                        kind={"type": "string", "minLength": 1, "maxLength": 63},
                        name=object_name,
                        namespace={"type": "string", "pattern": rf"^{label}$"},
                        port=port,
                        weight={"type": "integer", "minimum": 0, "maximum": 1_000_000},
                    ),
                },
                timeouts=fields(request=duration, backendRequest=duration),
            ),
        },
    ),
)

custom_schemas: Mapping[str, Schema] = {
    "LeaderWorkerSet": leader_worker_set,
    "HTTPRoute": http_route,
}


def check(thing: Mapping[str, Any]) -> None:
    """Raise unless the object fits its kind's schema; pods and metadata by Kubernetes' own."""
    jsonschema.validate(thing, custom_schemas[thing["kind"]])
    bare = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": thing["metadata"]}
    kubernetes_validate.validate(bare, kubernetes_validate.latest_version(), strict=True)
    template = thing["spec"].get("leaderWorkerTemplate", {})
    for name in {"leaderTemplate", "workerTemplate"} & template.keys():
        pods = {"apiVersion": "v1", "kind": "PodTemplate", "template": template[name]}
        kubernetes_validate.validate(pods, kubernetes_validate.latest_version(), strict=True)


def group_of_pods(**changes: Any) -> dict[str, Any]:
    values = {
        "name": "rep-1",
        "namespace": "inference",
        "image": "engines/vllm:1",
        "argv": ("vllm", "serve", "/models/a"),
        "port": 8000,
        "environment": {"HEADRACE_API_KEY": "the-engines-own-key"},
        "device_count": 8,
        "node_count": 2,
        **changes,
    }
    objects = replica_objects(ReplicaPod(**values))
    (found,) = [each for each in objects if each["kind"] == "LeaderWorkerSet"]
    return found


def route(**changes: Any) -> dict[str, Any]:
    chosen = Installation(
        namespace="inference",
        image="headrace:1",
        database_url="postgresql://user:word@db/headrace",
        limits_url="",
        admin_token="a-token",
        pepper_base64=base64.b64encode(b"p" * 32).decode(),
        hostname="api.example.com",
        **changes,
    )
    (found,) = [each for each in platform_objects(chosen) if each["kind"] == "HTTPRoute"]
    return found


@pytest.mark.parametrize(
    "thing",
    [
        group_of_pods(),
        group_of_pods(topology_key="rack", node_labels={"gpu": "h100"}),
        group_of_pods(worker_argv=("help",), node_count=16),
        route(),
        route(gateway_class="public"),
        route(gateway_class="edge/public"),
    ],
)
def test_a_custom_resource_fits_its_schema(thing: dict[str, Any]) -> None:
    check(thing)


@pytest.mark.parametrize("path", ["/spec/leaderWorkerTemplate/size", "/spec/replicas"])
def test_a_group_with_a_count_that_is_no_number_does_not(path: str) -> None:
    thing = copy.deepcopy(group_of_pods())
    *parents, last = path.strip("/").split("/")
    place = thing
    for name in parents:
        place = place[name]
    place[last] = "2"
    with pytest.raises(jsonschema.ValidationError):
        check(thing)


def test_a_field_that_the_api_has_not_is_found_at_any_depth() -> None:
    thing = copy.deepcopy(group_of_pods())
    thing["spec"]["networkConfig"]["subdomain"] = "mine"
    with pytest.raises(jsonschema.ValidationError, match="subdomain"):
        check(thing)
    thing = copy.deepcopy(group_of_pods())
    thing["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]["image"] = "misplaced"
    with pytest.raises(kubernetes_validate.ValidationError):
        check(thing)
    thing = copy.deepcopy(route())
    thing["spec"]["rules"][0]["timeouts"] = {"request": "forever"}
    with pytest.raises(jsonschema.ValidationError, match="forever"):
        check(thing)
