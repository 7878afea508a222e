"""Calls of the modules of watched models during some steps, for a daemon that asks for them."""

import sys
import time
from threading import Event
from typing import Protocol
from weakref import WeakSet

from trackside.wire import ModuleCalls, ModulesQuestion

UNWATCHED = "it watches no model; run.watch(model) or `trackside run --auto` does, from its first step on"
NOT_IMPORTED = "it has not imported PyTorch yet; ask again when it makes steps"
NO_STEP = "its optimizer made no step in {:.0f} s"


class CallRecording(Protocol):
    """A recording of one model; *over* is set when it is complete, or to end it."""

    over: Event

    def result(self, until: float) -> ModuleCalls:
        """Return what was recorded, with what a GPU has finished until a time of `time.monotonic`."""


class Watching(Protocol):
    """A watcher of a model, whose training's thread records."""

    def record_modules(self, steps: int) -> CallRecording | None:
        """Begin at the end of the present step; return None if the model is no longer watched."""


WATCHERS: WeakSet[Watching] = WeakSet()
_recordings: list[CallRecording] = []


def end() -> None:
    """End the present recording."""
    for one in _recordings:
        one.over.set()


def modules(question: ModulesQuestion) -> ModuleCalls:
    """Wait for the calls during the next steps, and return them; or why there are none."""
    until = time.monotonic() + question.seconds
    try:
        recordings = [one.record_modules(question.steps) for one in list(WATCHERS)]
        _recordings[:] = [one for one in recordings if one is not None]
        if not _recordings:
            return ModuleCalls(error=UNWATCHED if _has_pytorch() else NOT_IMPORTED)
        results = []
        for one in _recordings:
            one.over.wait(max(0.0, until - time.monotonic()))
            one.over.set()
            results.append(one.result(until))
        found = max(results, key=lambda one: len(one.calls))  # of several models, the one that works most
        return found if found.calls or found.error else ModuleCalls(error=NO_STEP.format(question.seconds))
    except Exception as error:  # noqa: BLE001  whatever of PyTorch's fails, training goes on
        return ModuleCalls(error=f"its modules cannot be recorded: {type(error).__name__}: {error}"[:300])
    finally:
        _recordings.clear()


def _has_pytorch() -> bool:
    """Return whether this process has imported PyTorch as a whole."""
    specification = getattr(sys.modules.get("torch"), "__spec__", None)
    return specification is not None and not getattr(specification, "_initializing", False)
