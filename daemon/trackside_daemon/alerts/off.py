"""Which alerts the user does not want."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


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


def regex(pattern: str) -> str:
    """A pattern of runs as a regular expression of Prometheus, which matches all of a name."""
    forms = {"*": ".*", "?": "."}
    return "".join(forms.get(letter) or re.escape(letter) for letter in pattern)
