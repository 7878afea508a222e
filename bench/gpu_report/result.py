"""Results of one part of the report. They travel as JSON from the part's process to the report."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


@dataclass
class Figure:
    """A measured figure.

    Attributes:
        name: The subject.
        measured: The value with its unit.
        limit: The limit with its unit; empty if there is none.
        met: Whether the limit is met; None if there is none, or if it cannot be judged here.
    """

    name: str
    measured: str
    limit: str = ""
    met: bool | None = None


@dataclass
class Table:
    """A table of details: the heads of the columns, and rows of cells."""

    columns: list[str]
    rows: list[list[str]]


@dataclass
class Result:
    """The result of a part.

    Attributes:
        figures: For the table of limits.
        tables: Details.
        notes: Lines of text, such as a reason.
    """

    figures: list[Figure] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def at_most(self, name: str, measured: float, limit: float, unit: str, *, judged: bool = True) -> None:
        """Add a figure that must not exceed its limit."""
        met = measured <= limit if judged else None
        self.figures.append(Figure(name, f"{measured:,.3g} {unit}".strip(), f"<= {limit:g} {unit}".strip(), met))

    def write(self, path: Path) -> None:
        """Write a JSON file."""
        path.write_text(json.dumps(asdict(self)))


def read(path: Path) -> Result:
    """Read the JSON file of a part.

    Raises:
        OSError: There is none.
        ValueError: It is not complete.
    """
    parsed = json.loads(path.read_text())
    return Result(
        [Figure(**figure) for figure in parsed["figures"]],
        [Table(**table) for table in parsed["tables"]],
        parsed["notes"],
    )
