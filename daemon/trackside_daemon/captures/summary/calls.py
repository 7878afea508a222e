"""Nest the events of a thread: the time that each call spends itself, and the function of the user that made it."""

from __future__ import annotations

import re
import sys
from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trackside_daemon.captures.summary.trace import Event

LOADER = "enumerate(DataLoader)"  # begin of the mark in which a loop waits for its next batch

ROUNDING = 1.0  # microseconds by which a call may end after the one that holds it

_FUNCTION = re.compile(r"(.+)\((\d+)\): (.*)", re.DOTALL)
_LIBRARIES = {"torch", "torchvision", "lib", "site-packages", "threading"} | sys.stdlib_module_names


class Call(msgspec.Struct, gc=False):
    """An event of a thread, and its place among the others.

    Attributes:
        own: Microseconds in which no call inside it ran.
        source: The user's innermost function that encloses it, or is it, as ``path/file.py:88 in name``; empty if not recorded.
        in_loader: It waits for the next batch, or a call that does encloses it.
        in_operator: An operator encloses it.
    """

    event: Event
    own: float
    source: str
    in_loader: bool
    in_operator: bool


def nest(events: Iterable[Event]) -> list[Call]:
    """Return the calls of one thread, by their begin."""
    calls: list[Call] = []
    enclosing: list[Call] = []
    for event in sorted(events, key=lambda event: (event.ts, -event.dur)):
        while enclosing and not encloses(enclosing[-1].event, event):
            enclosing.pop()
        call = _call(event, enclosing[-1] if enclosing else None)
        calls.append(call)
        enclosing.append(call)
    return calls


def encloses(outer: Event, event: Event) -> bool:
    """Return whether a call holds another. A function that begins a mark ends before it, and does not hold it."""
    return event.ts < outer.end and event.end <= outer.end + ROUNDING


def _call(event: Event, parent: Call | None) -> Call:
    in_loader = event.name.startswith(LOADER)
    source = user_source(event.name) if event.cat == "python_function" else ""
    if parent is None:
        return Call(event, event.dur, source, in_loader, in_operator=False)
    parent.own = max(0.0, parent.own - min(event.dur, parent.event.end - event.ts))
    in_operator = parent.in_operator or parent.event.cat == "cpu_op"
    return Call(event, event.dur, source or parent.source, in_loader or parent.in_loader, in_operator)


@lru_cache(4096)
def user_source(name: str) -> str:
    """Return ``path/file.py:88 in name`` of a function named ``path/file.py(88): name``; empty for PyTorch and standard library."""
    found = _FUNCTION.match(name)
    if found is None or name.startswith("<frozen "):
        return ""
    parts = found[1].split("/")
    if parts[0].removesuffix(".py") in _LIBRARIES or "site-packages" in parts:
        return ""
    return f"{found[1]}:{found[2]} in {found[3]}"
