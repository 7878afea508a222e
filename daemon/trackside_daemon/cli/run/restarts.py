"""Decide whether `trackside run` starts its command again, after how it has ended; and read the flags about that."""

from __future__ import annotations

import re
import signal
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from trackside_daemon.model.text import duration, matches_wildcards, number, seconds
from trackside_daemon.model.troubles import DETECTED

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

KINDS = ("crash", "hang", "nan")

RESTARTS = 5  # of a command, unless the flag says how many
SAME = 3  # ends by the same cause at the same step after which the command is not started again
PAUSES = (5.0, 20.0, 80.0)  # seconds before a restart; the next of them if the last one made no progress

# Wrong usage and sysexits.h's EX_CONFIG mean that the next start ends in the same way; shells give the other two.
FINAL_STATUSES = frozenset({2, 78, 126, 127})
# Somebody has ended the command itself.
FINAL_SIGNALS = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT})


def restarts(most: str, kinds: str, spent: int = 0) -> Restarts | None:
    """Return what decides on restarts, from the values of the flags; None without the flag.

    *spent* is the number of restarts before this process.

    Raises:
        ValueError: A value is none.
    """
    if not most:
        return None
    if most != "--" and not (most.isdecimal() and int(most) > 0):
        raise ValueError(
            f"--restart {most}: a number from 1 on is expected; without one, put --restart right before --"
        )
    words = [word.strip() for word in kinds.split(",")]
    if unknown := next((word for word in words if word not in KINDS), None):
        raise ValueError(f"--restart.on {unknown}: give {', '.join(KINDS)}, with commas between them")
    return Restarts(RESTARTS if most == "--" else int(most), frozenset(words), spent)


class StopOn(NamedTuple):
    """An alert that ends the command."""

    alert: str  # its name; * matches any text
    seconds: float  # how long it has to fire


def stop_alerts(text: str) -> list[StopOn]:
    """Return the alerts of ``NonFinite,LossDiverging:10m``.

    Raises:
        ValueError: One is unknown, or what follows it is no duration.
    """
    found = []
    for word in filter(None, map(str.strip, text.split(","))):
        name, _, length = word.partition(":")
        if not any(matches_wildcards(one, name) for one in DETECTED):
            raise ValueError(f"--stop-on {word}: there is no alert {name}; docs/alerts.md lists them")
        try:
            found.append(StopOn(name, float(str(seconds(length))) if length else 0.0))
        except ValueError:
            raise ValueError(f"--stop-on {word}: {length!r} is not a duration, such as 90s or 10m") from None
    return found


class CommandStart(NamedTuple):
    """A start of the command."""

    command: Sequence[str]  # the program and its arguments
    environ: Mapping[str, str]  # variables that are added to this process's environment

    def again(self, arguments: Sequence[str], checkpoint: str) -> CommandStart:
        """Return this start with arguments for restarts, to go on from a checkpoint; empty for none.

        ``{checkpoint}`` is replaced in the arguments. Without a checkpoint they are left out, if they ask for one.
        """
        if not checkpoint and any("{checkpoint}" in word for word in arguments):
            arguments = ()
        words = [word.replace("{checkpoint}", checkpoint) for word in arguments]
        resume = {"TRACKSIDE_RESUME": checkpoint} if checkpoint else {}
        return CommandStart([*self.command, *words], {**self.environ, **resume})


class CommandEnd(NamedTuple):
    """An end of a start of the command."""

    kind: str  # what happened; a hang and a NaN were ended by `trackside run`
    status: int  # the exit status, as in shells
    cause: str = ""  # what its run died of, or the verdict on it; empty if unknown
    step: int | None = None  # the last step of its run; None before the first
    at: float = 0.0  # when, in monotonic seconds

    @property
    def text(self) -> str:
        """The end in words: ``KeyError: 'lost', at step 170``."""
        what = self.cause or (f"exit status {self.status}" if self.kind == "crash" else self.kind)
        return what if self.step is None else f"{what}, at step {number(self.step)}"


class RestartDecision(NamedTuple):
    """The consequence of an end."""

    pause: float | None = None  # seconds until the next start; None for no restart
    reason: str = ""  # why there is none, in words; empty if that needs no word


class Restarts:
    """Counts the ends of a command.

    Args:
        most: Most restarts. One that makes no progress beyond the start before counts twice.
        kinds: What is answered by a restart.
        spent: Restarts that count already.

    Attributes:
        ends: Those that a restart followed; the caller appends them.
    """

    def __init__(self, most: int, kinds: frozenset[str], spent: int = 0) -> None:
        self.ends: list[CommandEnd] = []
        self.most, self.kinds = most, kinds
        self._spent, self._without_progress = spent, 0
        self._reached: int | None = None
        self._same: Counter[tuple[str, str, int | None]] = Counter()

    def may_answer(self, kind: str, status: int) -> bool:
        """Return whether an end of this kind may be followed by a restart."""
        return kind in self.kinds and bool(status) and not _final(kind, status)

    def after(self, end: CommandEnd) -> RestartDecision:
        """Return whether and when the command starts again."""
        if not self.may_answer(end.kind, end.status):
            return RestartDecision(reason=_final(end.kind, end.status) if end.kind in self.kinds else "")
        is_first = not self._same
        # Numbers in a cause, such as ports and addresses, differ.
        same = (end.kind, re.sub(r"\d+", "0", end.cause) or str(end.status), end.step)
        self._same[same] += 1
        if self._same[same] >= SAME:
            what = "stood still" if end.kind == "hang" else "ended"
            return RestartDecision(
                reason=f"not restarted: it has {what} {self._same[same]} times in the same way: {end.text}"
            )
        progress = end.step is not None and (self._reached is None or end.step > self._reached)
        self._without_progress = 0 if progress or is_first else self._without_progress + 1
        self._reached = end.step if progress else self._reached
        self._spent += 2 if self._without_progress else 1
        if self._spent > self.most:
            text = "1 restart is" if self.most == 1 else f"all {self.most} restarts are"
            return RestartDecision(reason=f"not restarted: {text} used up; one without progress counts twice")
        return RestartDecision(PAUSES[min(self._without_progress, len(PAUSES) - 1)])

    def line(self, now: float, *, failed: bool) -> str:
        """Return a sentence on all restarts, *now* in monotonic seconds; empty for none. A last start that *failed* is in it."""
        if not self.ends:
            return ""
        times = "once" if len(self.ends) == 1 else f"{len(self.ends)} times"
        what = ", ".join(
            end.kind if end.step is None else f"{end.kind} at step {number(end.step)}" for end in self.ends
        )
        passed = duration(now - self.ends[0].at)
        without = f"have stood still for {passed}" if self.ends[0].kind == "hang" else f"have ended {passed} ago"
        end = "it did not finish, and " if failed else ""
        return f"restarted {times}: {what}; {end}without --restart it would {without}"


def _final(kind: str, status: int) -> str:
    """Return why an end of the command is final, in words; empty if it is not."""
    if kind == "crash" and status in FINAL_STATUSES:
        return f"not restarted: exit status {status} says that the next start ends in the same way"
    if kind == "crash" and status - 128 in FINAL_SIGNALS:
        return f"not restarted: somebody ended the command by {signal.Signals(status - 128).name}"
    return ""
