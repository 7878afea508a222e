"""Accelerate: `TracksideTracker` takes what ``accelerator.log`` logs, on every rank, and sees ``save_state``.

    from trackside.integrations.accelerate import TracksideTracker

    accelerator = Accelerator(log_with=TracksideTracker())

Accelerate calls trackers on the main process alone, and tells a tracker that was made by the user neither the project's
name nor of checkpoints. So methods of its `Accelerator` are led through here, from the first tracker on; to others and to
accelerators without one they do what they did.
"""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any

from accelerate import Accelerator
from accelerate.tracking import GeneralTracker

from trackside.integrations.run_adapter import RunAdapter, harmless, saved, told

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trackside.run import Run


class TracksideTracker(GeneralTracker):
    """A tracker for ``Accelerator(log_with=…)``; what is logged with ``accelerator.log`` each rank pushes for itself.

    The run is named as the project that ``init_trackers`` names. It ends with ``end_training``, unless the training
    code has opened one.

    Args:
        name: As of `trackside.init`, as are *arguments*: ``tags=["baseline"]``, ``total_steps=10_000``, …
    """

    name = "trackside"
    requires_logging_directory = False
    main_process_only = False

    def __init__(self, name: str | None = None, **arguments: Any) -> None:
        super().__init__()
        self.joined = RunAdapter(name, arguments)
        _lead()

    @property
    def tracker(self) -> Run:
        """The run, which this opens if the training code has not."""
        return self.joined.open()

    @harmless
    def start(self) -> None:
        """Open the run."""
        self.joined.begin()

    @harmless
    def store_init_configuration(self, values: Mapping[str, Any]) -> None:
        """Keep *values* as the run's configuration."""
        self.joined.describe(values)

    @harmless
    def log(self, values: Mapping[str, Any], step: int | None = None, **_: Any) -> None:
        """Push numbers; tensors that are on a device are not waited for."""
        self.joined.open()._push(values, step, {})  # noqa: SLF001  as push, with a call less in each step

    @harmless
    def finish(self) -> None:
        """End the run."""
        self.joined.end()


def _lead() -> None:
    """Lead the methods of `Accelerator` through here, once."""
    for name, way in (("init_trackers", _init_trackers), ("log", _log), ("save_state", _save_state)):
        original = getattr(Accelerator, name)
        if not hasattr(original, "trackside"):
            setattr(Accelerator, name, _through(original, way))


def _through(original: Callable[..., Any], way: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def led(self: Any, *given: Any, **named: Any) -> Any:
        return way(original, self, *given, **named)

    led.trackside = True  # type: ignore[attr-defined]
    return led


def _ours(trackers: Any) -> list[TracksideTracker]:
    return [one for one in trackers if isinstance(one, TracksideTracker)]


def _init_trackers(
    original: Callable[..., Any], self: Any, project_name: str, config: Any = None, *given: Any, **named: Any
) -> None:
    """As Accelerate does it, and so on the ranks on which it does nothing."""
    trackers = _ours(self.log_with)
    for tracker in trackers:
        tracker.joined.name = tracker.joined.name or str(project_name)
    original(self, project_name, config, *given, **named)
    self.trackside_alone = (
        () if self.is_main_process else trackers
    )  # to be told by us: Accelerate tells only the main one's
    for tracker in [one for one in trackers if one not in self.trackers]:
        self.trackers.append(tracker)  # to be ended with the others
        tracker.start()
        if config is not None:
            tracker.store_init_configuration(config)


def _log(
    original: Callable[..., Any], self: Any, values: Any, step: int | None = None, *given: Any, **named: Any
) -> None:
    original(self, values, step, *given, **named)
    for tracker in getattr(self, "trackside_alone", ()):
        tracker.log(values, step)


def _save_state(original: Callable[..., Any], self: Any, *given: Any, **named: Any) -> Any:
    """A checkpoint; what is returned is the folder."""
    trackers = _ours(self.trackers)
    run = told("Accelerate: a checkpoint", trackers[0].joined.open) if trackers else None
    if run is None:
        return original(self, *given, **named)
    return saved(run, lambda: original(self, *given, **named), lambda folder: folder, tells=self.is_main_process)
