"""Where evidence is found: the newest values, the history, the training's processes, and their own answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from trackside_daemon.collectors.process.process import Process
    from trackside_daemon.history.read.series import Readable
    from trackside_daemon.model.records import Alert
    from trackside_daemon.model.state import State


class Answer(Protocol):
    """What a rank has answered."""

    @property
    def rank(self) -> int: ...  # noqa: D102
    @property
    def body(self) -> Any: ...  # noqa: D102


Ask = Callable[[str, frozenset[int]], tuple[frozenset[int], Sequence[Answer]]]
"""Asks ranks of a run, by its id, for their stacks, for a few seconds at most: who was asked, and the answers."""


class Sources(NamedTuple):
    """All of them.

    Attributes:
        state: The newest values.
        history: What is kept.
        ask: See `Ask`.
        seen: The training's processes in the last tick.
        written: Waits until the history has all that was told before, or for a few seconds.
        pause: Waits for so many seconds, or until the daemon stops.
    """

    state: State
    history: Readable
    ask: Ask
    seen: Callable[[], Sequence[Process]]
    written: Callable[[], object]
    pause: Callable[[float], object] = time.sleep


class Case(NamedTuple):
    """One alert that is looked into.

    Attributes:
        now: Seconds of the monotonic clock.
        wall: Unix time, in seconds.
        until: What came later is not part of it, in Unix seconds.
        missing: What could not be had, and why, in a line each; to be added to.
    """

    alert: Alert
    sources: Sources
    now: float
    wall: float
    until: float
    missing: list[str]

    @property
    def run(self) -> str:
        """The run's name, as it is exported; empty for the machine."""
        return self.alert.labels.get("run", "")

    def ranks(self) -> list[str]:
        """The ranks that it is about: the one in its labels, then those that its finder has named."""
        named = self.alert.evidence.get("ranks", {})
        own = [self.alert.labels["rank"]] if "rank" in self.alert.labels else []
        return list(dict.fromkeys([*own, *map(str, named)]))
