"""What the control plane runs beside its reconcilers: sign-on, alerts, webhooks, payments.

Their settings are variables of the environment, which `headrace up` hands on to its control plane.
"""

import asyncio
import logging
import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar
from urllib.parse import urlsplit

import msgspec

from headrace.base.absence import Absence
from headrace.base.clock import Clock
from headrace.base.errors import ConfigurationError
from headrace.base.loops import Loop
from headrace.cli.settings import Setting
from headrace.cli.views import comma_list
from headrace.control import device_meter
from headrace.control.admin.single_sign_on import SingleSignOn, SingleSignOnSettings
from headrace.control.alert_watch import AlertWatch
from headrace.control.counter_sampler import kept_days_default, kept_days_max, kept_days_min
from headrace.control.payments.payments import Payments
from headrace.control.payments.provider import PaymentProvider
from headrace.control.payments.stripe_provider import StripeProvider
from headrace.control.wallets import Wallets
from headrace.control.watch_loop import look_again
from headrace.control.webhook_sender import WebhookSender
from headrace.http.egress import EgressPolicy
from headrace.http.egress_client import EgressClient
from headrace.storage.database import Database

T = TypeVar("T", bound=msgspec.Struct)
logger = logging.getLogger(__name__)

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
payments_file = Setting(
    "payments-file",
    Path,
    None,
    "The payment provider: a JSON file of mode 0600 with provider (stripe), api_key, and "
    "optionally api_base.",
)
engine_samples_days = Setting(
    "engine-samples-days",
    int,
    kept_days_default,
    f"Days for which the minutes' samples of engines' counters are kept; {kept_days_min} at least.",
)
all_settings = (
    oidc_file,
    egress_allowed_hosts,
    admin_hosts,
    payments_file,
    engine_samples_days,
)
look_interval_s = 5.0


@dataclass(frozen=True, slots=True)
class ManagementSettings:
    """What an operator set."""

    egress: EgressPolicy
    admin_hosts: tuple[str, ...]
    single_sign_on: SingleSignOnSettings | None
    payment_provider: PaymentProvider | None = None
    engine_samples_days: int = kept_days_default


class PaymentSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who takes the money."""

    provider: Literal["stripe"]
    api_key: str
    api_base: str = ""  # of another server that speaks the provider's API


def read_management_settings(
    environment: Mapping[str, str] = os.environ,
) -> ManagementSettings:
    """The settings of the environment; ConfigurationError where they can't be meant."""
    provider_file = environment.get(oidc_file.variable)
    payments = environment.get(payments_file.variable)
    return ManagementSettings(
        egress=EgressPolicy.allowing(
            comma_list(environment.get(egress_allowed_hosts.variable)) or ()
        ),
        admin_hosts=tuple(comma_list(environment.get(admin_hosts.variable)) or ()),
        single_sign_on=None if provider_file is None else read_oidc_file(Path(provider_file)),
        payment_provider=None if payments is None else open_provider(Path(payments)),
        engine_samples_days=read_days(environment.get(engine_samples_days.variable)),
    )


def read_days(text: str | None) -> int:
    """For how long samples are kept; ConfigurationError if that is no number or too few."""
    if text is None:
        return kept_days_default
    if not (text.isascii() and text.isdigit() and kept_days_min <= int(text) <= kept_days_max):
        raise ConfigurationError(
            f"{engine_samples_days.variable} is a number of days from {kept_days_min} to "
            f"{kept_days_max}; it is {text!r}"
        )
    return int(text)


def open_provider(path: Path) -> PaymentProvider:
    """The payment provider of a file that only its owner may read."""
    settings = read_secret_file(path, PaymentSettings, payments_file)
    return StripeProvider(settings.api_key, settings.api_base)


def read_oidc_file(path: Path) -> SingleSignOnSettings:
    """The identity provider's settings from a file that only its owner may read."""
    settings = read_secret_file(path, SingleSignOnSettings, oidc_file)
    for name, url in (("issuer", settings.issuer), ("redirect_url", settings.redirect_url)):
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
            raise ConfigurationError(f"{oidc_file.variable}: {path}: {name} is no http(s) address")
    return settings


def read_secret_file(path: Path, kind: type[T], setting: Setting) -> T:
    """A JSON file that holds a secret; ConfigurationError if others can read it."""
    try:
        mode = path.stat().st_mode
        content = path.read_bytes()
    except OSError as error:
        raise ConfigurationError(
            f"{setting.variable}: {path} can't be read ({error.strerror})"
        ) from None
    if stat.S_IMODE(mode) & 0o077:
        raise ConfigurationError(
            f"{setting.variable}: {path} holds a secret and is readable by others; `chmod 600` it"
        )
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.DecodeError as error:
        raise ConfigurationError(f"{setting.variable}: {path}: {error}") from None


class Management:
    """The running parts; belongs to the event loop that it was made in."""

    def __init__(
        self, settings: ManagementSettings, database: Database, pepper: bytes, clock: Clock
    ) -> None:
        self.settings = settings
        self._clock = clock
        self._client = EgressClient(settings.egress)
        self._watch = AlertWatch(database, clock)
        self._wallets = Wallets(database, clock)
        self._meter = device_meter.DeviceMeter(database, clock)
        self._payments = Payments(database, clock, settings.payment_provider)
        self._sender = WebhookSender(database, self._client, pepper, clock)
        self._provider_client: EgressClient | None = None
        self.single_sign_on: SingleSignOn | None = None
        provider = settings.single_sign_on
        if provider is not None:  # it may be on the own network, without being open to webhooks
            hosts = {*settings.egress.allowed_hosts, urlsplit(provider.issuer).hostname or ""}
            self._provider_client = EgressClient(EgressPolicy.allowing(hosts))
            self.single_sign_on = SingleSignOn(provider, self._provider_client, clock)

    def loops(self, stop: asyncio.Event, leads: Callable[[], bool]) -> dict[str, Loop]:
        """What watches and tells until `stop` is set, by name; it acts while `leads` says that it
        is this process's part."""
        looks: tuple[tuple[str, Callable[[], object], float, str], ...] = (
            ("alerts", self._watch.look, look_interval_s, "alerts"),
            ("wallets", self._wallets.expire, look_interval_s, "grants that expire"),
            ("payments", self._payments.look, look_interval_s, "payments"),
            (
                "device_hours",
                self._meter.look,
                device_meter.look_interval_s,
                "sums of device hours",
            ),
        )
        found: dict[str, Loop] = {
            name: partial(
                look_again,
                look,
                stop,
                leads,
                interval_s=interval_s,
                absence=Absence(logger, self._clock, f"{what} wait for the store", f"{what} go on"),
            )
            for name, look, interval_s, what in looks
        }
        found["webhooks"] = partial(self._sender.run, stop, leads)
        return found

    async def close(self) -> None:
        """Close the connections, once nothing runs any more."""
        await self._client.close()
        if self._provider_client is not None:
            await self._provider_client.close()
