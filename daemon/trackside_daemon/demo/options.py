"""What the user wants to see of a demo, and whether it can be shown."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from trackside_daemon.demo.troubles import TROUBLES

DRIVER = Path("/proc/driver/nvidia/version")
LEAST_GPUS = 2
MOST = 64
"""GPUs that can be simulated, and ranks, each of which needs one."""


LIBRARIES = ("numpy", "torch")


class WantedError(Exception):
    """That cannot be shown; the text says why, in one line."""


class Wanted(NamedTuple):
    """The command's flags.

    Attributes:
        steps: Of the training; None for no end.
        trouble: What goes wrong in it, a name of `TROUBLES`; empty for nothing.
        after: Seconds of training before it does.
        ranks: Simulated ones; None for a real training.
        gpus: Simulated ones; None for as many as there are ranks, or for the real ones where there is a driver.
    """

    steps: int | None = None
    trouble: str = ""
    after: float = 15.0
    ranks: int | None = None
    gpus: int | None = None

    @property
    def processes(self) -> int:
        """How many train."""
        return self.ranks or (TROUBLES[self.trouble].ranks if self.trouble else 1)

    def simulated_gpus(self, driver: Path = DRIVER) -> int:
        """How many GPUs are simulated; 0 where the real ones are shown, on which a simulated rank never is."""
        if self.gpus:
            return self.gpus
        return max(LEAST_GPUS, self.ranks or 0) if self.ranks or not driver.exists() else 0

    def flags(self, driver: Path = DRIVER) -> dict[str, Any]:
        """The daemon's flags by which they are, nested as the settings are."""
        count = self.simulated_gpus(driver)
        return {"collector": {"gpu": {"simulate": count}}} if count else {}

    def check(self) -> None:
        """Whether there is such a trouble, and enough for it, and what trains.

        Raises:
            WantedError: There is not.
        """
        for flag, count in (("--ranks", self.ranks), ("--gpus", self.gpus)):
            if count is not None and not 1 <= count <= MOST:
                raise WantedError(f"{flag} {count}: it goes from 1 to {MOST}")
        if self.trouble and self.trouble not in TROUBLES:
            raise WantedError(f"--trouble {self.trouble}: there are {', '.join(TROUBLES)}")
        if self.ranks and self.trouble and self.ranks < (least := TROUBLES[self.trouble].ranks):
            raise WantedError(f"--ranks {self.ranks}: --trouble {self.trouble} needs {least} at least")
        if self.ranks and self.gpus and self.gpus < self.ranks:
            raise WantedError(f"--gpus {self.gpus}: each of the {self.ranks} ranks needs one; take --gpus {self.ranks}")
        if not self.ranks and not any(map(find_spec, LIBRARIES)):
            raise WantedError(
                "the training needs numpy or PyTorch: pip install 'trackside[demo]', or numpy alone; "
                "trackside demo --ranks 4 needs neither"
            )
