"""Mount tables for tests, as a process below *root* finds them in its mountinfo."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class Table:
    """A ``proc/self/mountinfo`` of a machine whose / is a directory of a test.

    Args:
        directory: The directory in which ``proc`` and ``host``, its root, are made.
    """

    def __init__(self, directory: Path) -> None:
        self.proc, self.root = directory / "proc", directory / "host"
        (self.proc / "self").mkdir(parents=True)
        self.root.mkdir()
        self._lines: list[str] = []
        self.numbers: dict[str, int] = {}
        self.mount("/", "ext4")

    def mount(self, point: str, fstype: str, options: str = "rw,relatime", more: str = "rw", on: int = 0) -> int:
        """Mount over the existing mount of a path, or on the mount *on*; return the new number."""
        number = 20 + len(self._lines)
        covering = [one for one in self.numbers if point == one or point.startswith(f"{one.rstrip('/')}/")]
        parent = on or (self.numbers[max(covering, key=len)] if covering else 1)
        where = f"{self.root}{point}".rstrip("/").replace("\\", "\\134").replace(" ", "\\040")
        self._lines.append(
            f"{number} {parent} 0:{number} / {where} {options} shared:1 master:2 - {fstype} source {more}\n"
        )
        self.numbers[point] = number
        (self.root / point.strip("/")).mkdir(parents=True, exist_ok=True)
        self._write()
        return number

    def unmount(self, number: int) -> None:
        """Remove the mount with that number."""
        self._lines = [line for line in self._lines if not line.startswith(f"{number} ")]
        self.numbers = {point: one for point, one in self.numbers.items() if one != number}
        self._write()

    def _write(self) -> None:
        (self.proc / "self" / "mountinfo").write_text("".join(self._lines))
