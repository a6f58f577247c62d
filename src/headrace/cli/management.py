"""What the control plane runs beside its reconcilers: single sign-on, alerts, webhooks.

Their settings are variables of the environment, which `headrace up` hands on to its control plane.
"""

import asyncio
import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from headrace.base.clock import Clock
from headrace.base.errors import ConfigurationError
from headrace.cli.settings import Setting
from headrace.cli.views import comma_list
from headrace.control.admin.single_sign_on import SingleSignOn, SingleSignOnSettings
from headrace.control.alert_watch import AlertWatch
from headrace.control.wallets import ExpiryWatch, Wallets
from headrace.control.webhook_sender import WebhookSender
from headrace.http.egress import EgressClient, EgressPolicy
from headrace.storage.database import Database

oidc_file = Setting(
    "oidc-file",
    Path,
    None,
    "The identity provider: a JSON file of mode 0600 with issuer, client_id, client_secret, "
    "redirect_url, and optionally scopes, claim, rules.",
)
egress_allowed_hosts = Setting(
    "egress-allowed-hosts",
    str,
    None,
    "Hosts of the own network that webhooks may lead to, comma-separated.",
)
admin_hosts = Setting(
    "admin-hosts",
    str,
    None,
    "Names besides loopback's by which browsers reach the console, comma-separated.",
)
all_settings = (oidc_file, egress_allowed_hosts, admin_hosts)


@dataclass(frozen=True, slots=True)
class ManagementSettings:
    """What an operator set."""

    egress: EgressPolicy
    admin_hosts: tuple[str, ...]
    single_sign_on: SingleSignOnSettings | None


def read_management_settings(
    environment: Mapping[str, str] = os.environ,
) -> ManagementSettings:
    """The settings of the environment; ConfigurationError where they can't be meant."""
    provider_file = environment.get(oidc_file.variable)
    return ManagementSettings(
        egress=EgressPolicy.allowing(
            comma_list(environment.get(egress_allowed_hosts.variable)) or ()
        ),
        admin_hosts=tuple(comma_list(environment.get(admin_hosts.variable)) or ()),
        single_sign_on=None if provider_file is None else read_oidc_file(Path(provider_file)),
    )


def read_oidc_file(path: Path) -> SingleSignOnSettings:
    """The identity provider's settings from a file that only its owner may read."""
    try:
        mode = path.stat().st_mode
        content = path.read_bytes()
    except OSError as error:
        raise ConfigurationError(
            f"{oidc_file.variable}: {path} can't be read ({error.strerror})"
        ) from None
    if stat.S_IMODE(mode) & 0o077:
        raise ConfigurationError(
            f"{oidc_file.variable}: {path} holds a secret and is readable by others; `chmod 600` it"
        )
    try:
        settings = msgspec.json.decode(content, type=SingleSignOnSettings)
    except msgspec.DecodeError as error:
        raise ConfigurationError(f"{oidc_file.variable}: {path}: {error}") from None
    for name, url in (("issuer", settings.issuer), ("redirect_url", settings.redirect_url)):
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
            raise ConfigurationError(f"{oidc_file.variable}: {path}: {name} is no http(s) address")
    return settings


class Management:
    """The running parts; belongs to the event loop that it was made in."""

    def __init__(
        self, settings: ManagementSettings, database: Database, pepper: bytes, clock: Clock
    ) -> None:
        self.settings = settings
        self._client = EgressClient(settings.egress)
        self._watch = AlertWatch(database, clock)
        self._expiry = ExpiryWatch(Wallets(database, clock))
        self._sender = WebhookSender(database, self._client, pepper, clock)
        self._provider_client: EgressClient | None = None
        self.single_sign_on: SingleSignOn | None = None
        provider = settings.single_sign_on
        if provider is not None:  # it may be on the own network, without being open to webhooks
            hosts = {*settings.egress.allowed_hosts, urlsplit(provider.issuer).hostname or ""}
            self._provider_client = EgressClient(EgressPolicy.allowing(hosts))
            self.single_sign_on = SingleSignOn(provider, self._provider_client, clock)

    async def run(self, stop: asyncio.Event, leads: Callable[[], bool]) -> None:
        """Watch and tell until told to stop, while `leads` says that it is this process's part."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._watch.run(stop, leads))
                group.create_task(self._expiry.run(stop, leads))
                group.create_task(self._sender.run(stop, leads))
        finally:
            await self._client.close()
            if self._provider_client is not None:
                await self._provider_client.close()
