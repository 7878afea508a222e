"""Which alerts the user does not want."""

from __future__ import annotations

import difflib
import re
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence


class Off:
    """Those that are off.

    Args:
        names: ``NAME``, or ``NAME@PATTERN`` for runs whose name fits the pattern only, with ``*`` and ``?``.
    """

    def __init__(self, names: Sequence[str] = ()) -> None:
        self._patterns: dict[str, list[str]] = {}
        for one in names:
            name, _, pattern = one.partition("@")
            self._patterns.setdefault(name, []).append(pattern)

    def patterns(self, alert: str) -> tuple[str, ...]:
        """The patterns of runs for which an alert is; the empty one stands for all, and for what is of no run."""
        return tuple(self._patterns.get(alert, ()))

    def has(self, alert: str, about: Mapping[str, str]) -> bool:
        """Whether an alert with these labels is."""
        patterns = self._patterns.get(alert)
        if patterns is None:
            return False
        run = about.get("run", "")
        return any(not pattern or fnmatchcase(run, pattern) for pattern in patterns)


def unknown(names: Sequence[str], alerts: Collection[str]) -> Iterator[str]:
    """A line for each of the *names* that turns nothing off, since it is none of the *alerts*."""
    written = {alert.lower(): alert for alert in alerts}
    for one in dict.fromkeys(name.partition("@")[0] for name in names):
        if one in alerts:
            continue
        small = one.lower()
        near = [small.removeprefix("trackside")] if small.removeprefix("trackside") in written else []
        near = near or difflib.get_close_matches(small, written, 1)
        hint = f"did you mean {written[near[0]]}?" if near else "docs/alerts.md lists them"
        yield f"alerts.off: there is no alert {one!r:.80}; {hint}"


def regex(pattern: str) -> str:
    """A pattern of runs as a regular expression of Prometheus, which matches all of a name."""
    forms = {"*": ".*", "?": "."}
    return "".join(forms.get(letter) or re.escape(letter) for letter in pattern)
