"""Guard the calls of other libraries into trackside: the first error of a hook turns it off."""

from __future__ import annotations

from contextlib import suppress
from os import register_at_fork
from threading import get_ident
from typing import TYPE_CHECKING, Any

from trackside.interpreter import without_collection
from trackside.packing import text_of
from trackside.pytorch.hooks import uncompiled

if TYPE_CHECKING:
    from collections.abc import Callable

    from trackside.auto.run import AutoRun

REASON_LENGTH = 200

hooks: dict[str, LibraryHook] = {}
"""All hooks of this process, by name."""

failures: list[tuple[str, str]] = []
"""Names and errors of the hooks that failed, until there is a run to which they can be reported."""

_run: AutoRun | None = None

runs: dict[int, AutoRun] = {}
"""The runs of threads that train beside others, by thread."""


class LibraryHook:
    """A call from another library into trackside, which never raises.

    Args:
        name: Its name in the daemon's log.
        work: Called with the hook's arguments until it raises.

    Attributes:
        work: As given.
        is_on: False after an error.
    """

    __slots__ = ("is_on", "name", "work")

    def __init__(self, name: str, work: Callable[..., Any]) -> None:
        self.name, self.work, self.is_on = name, work, True
        hooks[name] = self

    def __call__(self, *given: Any, **named: Any) -> None:
        """Call *work*; its first error is reported, and turns it off."""
        if self.is_on:
            try:
                self.work(*given, **named)
            except Exception as error:  # noqa: BLE001  whatever it is, training must go on
                self.fail(error)

    def fail(self, error: Exception) -> None:
        """Turn it off, and report why. This opens the run: a training is under way."""
        self.is_on = False
        report_failure(self.name, error, opens=True)


def auto_run() -> AutoRun:
    """Return the run that hooks push to. The first call imports the client, and opens no run yet."""
    global _run  # noqa: PLW0603
    if runs and (own := runs.get(get_ident())) is not None:
        return own
    if _run is None:
        _run = uncompiled(_make_run)()
    return _run


def _make_run() -> AutoRun:
    with without_collection():  # a collection takes longer than the import
        from trackside.auto.run import AutoRun
    run = AutoRun(failures)
    register_at_fork(after_in_child=run.forked)
    return run


def report_failure(hook: str, error: Exception, *, opens: bool = False) -> None:
    """Report an error of a hook: to the daemon, or in the training's log while there is no run and this *opens* none."""
    reason = f"{type(error).__name__}: {text_of(error)}".partition("\n")[0][:REASON_LENGTH]
    with suppress(Exception):
        failures.append((hook, reason))
        run = auto_run() if opens else _run
        if run is None or not (run.open() if opens else run.send_failures()):
            from trackside.training_log import warn

            warn(f"auto: {hook}: {reason}; training goes on without these values")
