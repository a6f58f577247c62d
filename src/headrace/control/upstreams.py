"""Deployments of engines that others run: what they may say, and what makes no sense of them."""

import ipaddress
from urllib.parse import urlsplit

from headrace.adapters.facts import Start
from headrace.adapters.protocol import EngineAdapter
from headrace.base.errors import InvalidRequest
from headrace.base.secret_references import check_reference
from headrace.http.egress import is_local_name, is_public, literal_address
from headrace.spec.deployments import Deployment, Upstream
from headrace.spec.models import ModelVersion
from headrace.spec.resources import ReplicaResources

address_characters_max = 2048


def check_upstream(deployment: Deployment, adapter: EngineAdapter, version: ModelVersion) -> None:
    """InvalidRequest if a deployment's engine, address and model do not go together."""
    upstream = deployment.upstream
    if upstream is None:
        if adapter.facts.start is Start.EXTERNAL:
            raise InvalidRequest(
                f"{adapter.facts.title} is run by others: give its address (--address).",
                param="upstream",
            )
        if version.upstream_name:
            raise InvalidRequest(
                f"The version {version.name!r} is {version.source}, which others serve: give the "
                "address where they do (--address).",
                param="upstream",
            )
        return
    check_address(upstream)
    for name, is_given in (
        ("engine_arguments", bool(deployment.engine_arguments)),
        ("environment", bool(deployment.environment)),
        ("threads", deployment.threads is not None),
        ("loras", bool(deployment.loras)),
        ("resources", deployment.resources != ReplicaResources()),
        ("autoscaling", deployment.autoscaling is not None),
    ):
        if is_given:
            raise InvalidRequest(
                f"{name} is for engines that headrace starts; this one is run by others.",
                param=name,
            )
    if deployment.replicas > 1:
        raise InvalidRequest(
            "An address is one replica, or none; make a deployment for each address.",
            param="replicas",
        )


def check_address(upstream: Upstream) -> None:
    """InvalidRequest for an address that is none, or to which a key must not be sent."""
    address = upstream.address
    try:
        parts = urlsplit(address)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host = None
    is_text = address.isascii() and address.isprintable() and len(address) <= address_characters_max
    if not is_text or not host or parts.scheme not in ("http", "https"):
        raise InvalidRequest(
            "upstream.address: give a base URL, such as https://api.example.com/v1",
            param="upstream.address",
        )
    if "@" in parts.netloc or parts.query or parts.fragment or " " in address:
        raise InvalidRequest(
            "upstream.address: a base URL has no user, query or fragment", param="upstream.address"
        )
    literal = literal_address(host)
    if literal is not None and literal.is_link_local:  # a cloud's metadata, with its credentials
        raise InvalidRequest("upstream.address: no engine is there", param="upstream.address")
    if not upstream.key:
        return
    check_reference(upstream.key, "upstream.key")
    if parts.scheme == "http" and not is_inside(host, literal):
        raise InvalidRequest(
            "upstream.address: a key is only sent over https://, or inside the own network",
            param="upstream.address",
        )


def is_inside(host: str, literal: ipaddress.IPv4Address | ipaddress.IPv6Address | None) -> bool:
    """Whether a host is of the own machine or network, by its address or by a name of its kind."""
    return is_local_name(host) if literal is None else not is_public(literal)
