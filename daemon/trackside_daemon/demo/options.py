"""Options of the demo, the check that they can be met, and what the demo says about them."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from trackside_daemon.demo.troubles import TROUBLES
from trackside_daemon.model.families import gpu
from trackside_daemon.model.families.training import PREFIX

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


def introduction(address: str, token: str, options: DemoOptions) -> str:
    """Return what runs, where to see it, and the trouble to expect."""
    if options.ranks:
        ranks = "a simulated rank trains" if options.ranks == 1 else f"{options.ranks} simulated ranks train"
        training = f"{ranks}, without real computation"
    else:
        training = "a small language model learns to write Python's help pages"
    return (
        f"""
  trackside is running. Next to it, {training}.

    dashboard   http://{address}/#token={token}
    metrics     http://{address}/metrics
    try         curl -s http://{address}/metrics | grep {PREFIX[:-1]}
    scrape      scrape_configs: [{{job_name: trackside, static_configs: [{{targets: ["{address}"]}}]}}]
"""
        + _gpu_note(options)
        + _trouble_note(options)
        + "\n  Press Ctrl-C to end the demo. Progress, from /metrics:\n"
    )


def _gpu_note(options: DemoOptions) -> str:
    count = options.simulated_gpus()
    if not count:
        return ""
    reason = "" if options.ranks or options.gpus else "There is no NVIDIA driver here, so "
    gpus = "GPUs are" if count > 1 else "GPU is"
    return f'\n  {reason}{count} {gpus} simulated: {gpu.INFO.name} has source="simulated".\n'


def _trouble_note(options: DemoOptions) -> str:
    if not options.trouble:
        return ""
    trouble = TROUBLES[options.trouble]
    note = f"  {trouble.note}\n" if trouble.note else ""
    alerts = " or ".join(trouble.alerts)
    return f"\n  After {options.after:g} s of training it goes wrong. Expect the alert {alerts}.\n{note}"
