"""Where the platform's processes find their state below the data directory, and their launcher."""

from dataclasses import dataclass
from pathlib import Path

from headrace.base.clock import Clock
from headrace.base.errors import ConfigurationError
from headrace.launchers import lifeline
from headrace.launchers.process import ProcessLauncher
from headrace.spec.api_key_format import pepper_bytes


@dataclass(frozen=True, slots=True)
class PlatformFiles:
    """The paths below one data directory."""

    data_dir: Path

    @property
    def database(self) -> Path:
        """The store and the ledger."""
        return self.data_dir / "headrace.db"

    def existing_database(self, database_url: str | None) -> Path:
        """The database file, which must be there unless the database is somewhere else."""
        if database_url is None and not self.database.exists():
            raise ConfigurationError(
                f"{self.data_dir} has no database; name the platform's --data-dir, or its "
                "--database-url"
            )
        return self.database

    @property
    def pepper(self) -> Path:
        """The server's secret for API keys."""
        return self.data_dir / "pepper"

    def read_pepper(self) -> bytes:
        """The pepper itself; ConfigurationError if `up` made none."""
        try:
            pepper = self.pepper.read_bytes()
        except OSError as error:
            raise ConfigurationError(
                f"{self.pepper} cannot be read ({error.strerror}); start the platform with "
                "`headrace up`, or make it once with `headrace init` and copy it to each machine."
            ) from None
        if len(pepper) < pepper_bytes:
            raise ConfigurationError(
                f"{self.pepper} has {len(pepper)} bytes instead of {pepper_bytes}; restore it from "
                "a backup. Without it no API key can be checked."
            )
        return pepper

    @property
    def logs_dir(self) -> Path:
        """One file for each child process."""
        return self.data_dir / "logs"

    @property
    def run_dir(self) -> Path:
        """What means something only while the platform runs."""
        return self.data_dir / "run"

    @property
    def lock(self) -> Path:
        """Locked by the supervisor that has the directory; says which process that is."""
        return self.run_dir / "lock"

    @property
    def admin(self) -> Path:
        """The admin API's address and token of this start."""
        return self.run_dir / "admin.json"

    @property
    def records_dir(self) -> Path:
        """The replicas' processes."""
        return self.run_dir / "replicas"


def local_launcher(files: PlatformFiles, clock: Clock) -> ProcessLauncher:
    """The launcher of this machine's replicas, with those that run already."""
    return ProcessLauncher(
        files.records_dir, files.logs_dir, lifeline.inherited_descriptor(), clock
    )
