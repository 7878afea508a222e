"""A page of metrics, parsed by strict rules of this module, since a lenient parser would hide mistakes."""

from __future__ import annotations

import re
import subprocess
from typing import NamedTuple

from processes import DEADLINE

HEAD = re.compile(r"# (HELP|TYPE|UNIT) (\S+) (.+)")
LINE = re.compile(r"(?P<name>[a-z_0-9]+)(\{(?P<labels>.*)\})? (?P<value>\S+)")
LABEL = re.compile(r'([a-z_][a-z0-9_]*)="((?:[^"\\]|\\.)*)"')


class Series(NamedTuple):
    """A line of the page.

    Attributes:
        family: The family of the TYPE line above it.
        labels: The values as written, with their backslashes.
    """

    family: str
    name: str
    labels: dict[str, str]
    value: float


class Page:
    """A page as text.

    Attributes:
        heads: Kind, family and text of every line HELP, TYPE and UNIT, in order.
        series: The series of all families, in order.
    """

    def __init__(self, text: str) -> None:
        self.heads: list[tuple[str, str, str]] = []
        self.series: list[Series] = []
        for line in text.splitlines():
            if (head := HEAD.fullmatch(line)) is not None:
                self.heads.append((head[1], head[2], head[3]))
            elif line != "# EOF":
                self._add(line)

    @property
    def kinds(self) -> dict[str, str]:
        """The type of each family."""
        return {name: text for kind, name, text in self.heads if kind == "TYPE"}

    def _add(self, line: str) -> None:
        found = LINE.fullmatch(line)
        assert found is not None, line
        labels = LABEL.findall(found["labels"] or "")
        assert ",".join(f'{name}="{value}"' for name, value in labels) == (found["labels"] or ""), line
        self.series.append(Series(self.heads[-1][1], found["name"], dict(labels), float(found["value"])))


def promtool(page: str) -> str:
    """Return the complaints of promtool about a page."""
    check = subprocess.run(
        ["promtool", "check", "metrics"], input=page, capture_output=True, text=True, timeout=DEADLINE, check=False
    )
    reported = check.stdout + check.stderr
    return reported if check.returncode == 0 else f"exit status {check.returncode}: {reported}"
