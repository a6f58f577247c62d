"""A server's certificate, and its renewals: new files are used without a restart.

The context that the listener has takes the new chain; connections that are open keep the old one.
A pair that does not fit, such as one that is half renewed, is not taken, and is looked at again.
"""

import asyncio
import logging
import ssl
from pathlib import Path

from headrace.base.errors import ConfigurationError
from headrace.base.loops import pause_unless

look_interval_s = 10.0

log = logging.getLogger(__name__)
Stamp = tuple[tuple[int, int, int], ...]  # of each file: inode, size, nanoseconds


class Certificate:
    """A chain and its key in PEM files."""

    def __init__(self, chain: Path, key: Path) -> None:
        """ConfigurationError if they cannot be used."""
        self._files = (chain, key)
        try:
            self._stamp = self._look()
            self.context = self._read(server_context())
            self._expire_time = first_expire_time(chain.read_bytes())
        except (OSError, ssl.SSLError) as error:
            raise ConfigurationError(
                f"The certificate {chain} with the key {key} cannot be used: {error}."
            ) from None

    def renew(self) -> bool:
        """Take new files if there are some; True if they are in use now."""
        try:
            stamp = self._look()
            if stamp == self._stamp:
                return False
            self._read(server_context())  # whether they fit, before they are put into use
            expire_time = first_expire_time(self._files[0].read_bytes())
            self._read(self.context)
        except (OSError, ssl.SSLError) as error:
            log.warning("the renewed certificate cannot be used yet: %s", error)
            return False
        self._stamp, self._expire_time = stamp, expire_time
        log.info("the certificate %s was renewed", self._files[0])
        return True

    def expire_time(self) -> float:
        """When the first certificate of the chain in use expires, in seconds since the epoch."""
        return self._expire_time

    async def follow(self, stop: asyncio.Event) -> None:
        """Look for renewals until told to stop."""
        while not stop.is_set():
            await pause_unless(stop, look_interval_s)
            await asyncio.to_thread(self.renew)

    def _look(self) -> Stamp:
        stats = [path.stat() for path in self._files]
        return tuple((stat.st_ino, stat.st_size, stat.st_mtime_ns) for stat in stats)

    def _read(self, context: ssl.SSLContext) -> ssl.SSLContext:
        context.load_cert_chain(*self._files, password=no_password)
        return context


def first_expire_time(chain: bytes) -> float:
    """When the first of a PEM file's certificates expires."""
    from cryptography import x509  # noqa: PLC0415 -- slow to load, and only TLS needs it

    found = x509.load_pem_x509_certificates(chain)
    return min(each.not_valid_after_utc.timestamp() for each in found)


def no_password() -> str:
    """Asked for by an encrypted key; without this OpenSSL would ask the terminal."""
    raise ssl.SSLError("the key is encrypted; store it without a password, readable by its owner")


def server_context() -> ssl.SSLContext:
    """TLS 1.2 and later, HTTP/1.1."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context
