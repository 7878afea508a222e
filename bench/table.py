"""Print Markdown tables line by line while measuring."""

from __future__ import annotations

import os
import platform
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

UNAVAILABLE = "-"


def machine() -> None:
    """Describe the machine."""
    print(f"\n{platform.platform()}, {os.cpu_count()} cores, Python {platform.python_version()}", flush=True)


def head(what: str, *columns: str) -> None:
    """Begin a table: its subject, then columns of figures."""
    print(f"\n| {what} | {' | '.join(columns)} |\n|---|{'---:|' * len(columns)}", flush=True)


def row(*cells: str) -> None:
    """Print a row."""
    print(f"| {' | '.join(cells)} |", flush=True)


def verdict(what: str, measured: str, limit: str, *, met: bool | None) -> None:
    """Print a row of a table of limits; None if it could not be measured."""
    row(what, measured, limit, UNAVAILABLE if met is None else "met" if met else "**MISSED**")


def at_most(what: str, measured: float, limit: float, unit: str = "") -> None:
    """Print the row of an upper limit."""
    verdict(what, f"{measured:.3g} {unit}".strip(), f"<= {limit:g} {unit}".strip(), met=measured <= limit)


def interval(found: Sequence[float], form: str = "+.2f", unit: str = " %") -> str:
    """Return a middle and its interval as text: ``+0.12 % [0.08, 0.16]``."""
    middle, low, high = found
    plain = form.lstrip("+")
    return f"{middle:{form}}{unit} [{low:{plain}}, {high:{plain}}]"
