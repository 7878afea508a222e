"""Places of a rank and of the processes below it, in words."""

import os
import re
from collections.abc import Iterable, Sequence

from trackside.wire import Child
from trackside_daemon.linux.process_exit import signal_name
from trackside_daemon.model.text import shown

CHARACTERS = 100  # most characters of a name, a shape or a line in a verdict
NAMED = 3  # processes that a clause names
CLAUSES = 2  # of a rank, on its children

# Parts of paths that no user's training has: the standard library, installed packages, the import system, and the client.
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python", "<frozen ", "/trackside/auto/", "/trackside/totals/")

# Calls in which a process waits for others that it has started.
_WAITS = re.compile(r"/(?:torch/utils/data/dataloader|multiprocessing/\w+|concurrent/futures/\w+|subprocess)\.py:")
_WORKER = re.compile(r"/multiprocessing/process\.py:\d+ _bootstrap$")
_PUT = re.compile(r"/multiprocessing/queues\.py:\d+ (?:put|_feed)$")
_SEND = re.compile(r"/multiprocessing/(?:queues\.py:\d+ put|connection\.py:\d+ _send)$")

# What a child does, the likelier cause of a hang first; the second words are those of several.
_HOW = {
    "killed": ("was killed by", "were killed by"),
    "ended": ("has ended with", "have ended with"),
    "stopped": ("is stopped", "are stopped"),
    "device": ("waits for a device or a file system", "wait for a device or a file system"),
    "full": ("waits for room in a queue that is full", "wait for room in a queue that is full"),
    "lock": ("waits for a lock", "wait for a lock"),
    "sleep": ("sleeps", "sleep"),
    "busy": ("computes", "compute"),
    "there": ("is", "are"),
    "idle": ("waits for work", "wait for work"),
    "done": ("has ended with", "have ended with"),
}


def cleaned(text: str) -> str:
    """Return a text from outside for one line of a verdict."""
    return shown(text[-CHARACTERS:])


def innermost(frames: Sequence[str]) -> tuple[str, str]:
    """Return the innermost call of a stack in the user's code, and the innermost one if that is another."""
    own = next((frame for frame in reversed(frames) if is_own(frame)), "")
    inner = frames[-1] if frames else ""
    return _short(own or inner), _short(inner) if own and inner != own else ""


def children_text(children: Iterable[Child], main: Sequence[str]) -> str:
    """Return clauses on the processes below a rank that can hold it up, whose main thread has these calls; empty without any.

    Where it does not wait for a child, only one that was killed counts.
    """
    waits = any(_WAITS.search(frame) for frame in main)
    by_text: dict[tuple[int, str, str, str], list[str]] = {}
    for child in children:
        how, where = _how(child)
        if waits or how == "killed":
            what = "worker" if _is_worker(child) else f"child {cleaned(child.name)}"
            by_text.setdefault((list(_HOW).index(how), how, what, where), []).append(str(child.pid))
    clauses = []
    for (_, how, what, where), pids in sorted(by_text.items()):
        more = [f"{len(pids) - NAMED + 1} more"] if len(pids) > NAMED else []
        named = pids[: NAMED - len(more)] + more
        who = f"{what}{'s' * (len(pids) > 1)} {' and '.join(filter(None, (', '.join(named[:-1]), named[-1])))}"
        clauses.append(f"{who} {_HOW[how][len(pids) > 1]}{where}")
    # One that has no work waits for the rank; it says nothing where another one has.
    return ", ".join(clauses[:CLAUSES] if len(clauses) < 2 or "for work" not in clauses[1] else clauses[:1])


def _how(child: Child) -> tuple[str, str]:
    """Return what a child does, as a key of `_HOW`, and where, as the end of the clause."""
    if child.state == "Z":
        ended = child.ended & 0xFFFF  # as wait() has it; a rank may say anything
        if not os.WIFSIGNALED(ended):
            status = os.WEXITSTATUS(ended)
            return "ended" if status else "done", f" status {status}"
        return "killed", f" {signal_name(os.WTERMSIG(ended))}"
    if child.state in {"T", "t"}:
        return "stopped", f", and `kill -CONT {child.pid}` continues it"
    frames = next(iter(child.threads.values()), [])
    own = next((_short(frame) for frame in reversed(frames) if is_own(frame)), "")
    doing = _doing(child, idle=bool(frames) and not own)
    if own:
        return doing, f" at {own}"
    return doing, f" in {cleaned(child.waits) or f'state {child.state}'}" if doing == "there" else ""


def _doing(child: Child, *, idle: bool) -> str:
    """Return what a child that lives does; it is *idle* if it is in no code of the user."""
    stacks = [frames for frames in child.threads.values() if frames]
    puts = any(_PUT.search(frame) for frames in stacks for frame in frames)
    if puts and any(_SEND.search(frames[-1]) for frames in stacks):
        return "full"
    states = {"D": "device", "R": "there" if idle else "busy"}
    waits = {"futex": "lock", "nanosleep": "sleep"}
    waiting = next((how for part, how in waits.items() if part in child.waits), "there")
    return states.get(child.state, "idle" if idle else waiting)


def _is_worker(child: Child) -> bool:
    return child.name == "pt_data_worker" or any(_WORKER.search(one) for of in child.threads.values() for one in of[:1])


def is_own(frame: str) -> bool:
    """Return whether a call is in the user's code."""
    return not any(part in frame for part in _LIBRARIES)


def _short(frame: str) -> str:
    """Return ``/a/b/train.py:3 main`` as ``train.py:3 in main``."""
    place, _, function = frame.rpartition(" ")
    return cleaned(f"{place.rpartition('/')[2]} in {function}" if place else frame)
