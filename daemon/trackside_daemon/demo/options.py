"""Options of the demo, and the check that they can be met."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from trackside_daemon.demo.troubles import TROUBLES

DRIVER = Path("/proc/driver/nvidia/version")
MIN_GPUS = 2
MAX_GPUS = 64  # maximum of simulated GPUs, and of ranks, each of which needs one

NEEDS_NUMPY = (
    "the training needs numpy: pip install 'trackside[demo]', or numpy alone; trackside demo --ranks 4 does not"
)


class DemoOptionsError(Exception):
    """The options cannot be met; the message states why, in one line."""


class DemoOptions(NamedTuple):
    """Options of the command."""

    steps: int | None = None  # steps of the training; None for no end
    trouble: str = ""  # trouble in the training, a name of `TROUBLES`; empty for none
    after: float = 15.0  # seconds of training before the trouble begins
    ranks: int | None = None  # number of simulated ranks; None for a real training
    # Number of simulated GPUs; None for one per rank, or for the real ones if there is a driver.
    gpus: int | None = None

    @property
    def processes(self) -> int:
        """Number of training processes."""
        return self.ranks or (TROUBLES[self.trouble].ranks if self.trouble else 1)

    def simulated_gpus(self, driver: Path = DRIVER) -> int:
        """Return the number of simulated GPUs; 0 to show the real ones. Simulated ranks never use real GPUs."""
        if self.gpus:
            return self.gpus
        return max(MIN_GPUS, self.ranks or 0) if self.ranks or not driver.exists() else 0

    def flags(self, driver: Path = DRIVER) -> dict[str, Any]:
        """Return the daemon's flags for the simulated GPUs, nested like the settings."""
        count = self.simulated_gpus(driver)
        return {"collector": {"gpu": {"simulate": count}}} if count else {}

    def check(self) -> None:
        """Check that the trouble exists, that it has enough ranks and GPUs, and that numpy is there.

        Raises:
            DemoOptionsError: A check failed.
        """
        for flag, count in (("--ranks", self.ranks), ("--gpus", self.gpus)):
            if count is not None and not 1 <= count <= MAX_GPUS:
                raise DemoOptionsError(f"{flag} {count}: must be from 1 to {MAX_GPUS}")
        if self.trouble and self.trouble not in TROUBLES:
            raise DemoOptionsError(f"--trouble {self.trouble}: must be one of {', '.join(TROUBLES)}")
        if self.ranks and self.trouble and self.ranks < (least := TROUBLES[self.trouble].ranks):
            raise DemoOptionsError(f"--ranks {self.ranks}: --trouble {self.trouble} needs at least {least}")
        if self.ranks and self.gpus and self.gpus < self.ranks:
            raise DemoOptionsError(
                f"--gpus {self.gpus}: each of the {self.ranks} ranks needs one; use --gpus {self.ranks}"
            )
        if not self.ranks and find_spec("numpy") is None:
            raise DemoOptionsError(NEEDS_NUMPY)
