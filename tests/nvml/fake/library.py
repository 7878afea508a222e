"""Fake driver in C, which the real worker loads through the unmodified pynvml, and its scenario."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

HERE = Path(__file__).parent
BOARDS = HERE.parent / "boards"


def compile_library(directory: Path) -> Path:
    """Compile ``libnvidia-ml.so.1`` in the *directory* with the system's compiler; return its path."""
    library = directory / "libnvidia-ml.so.1"
    command = ["cc", "-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror", "-o", str(library), str(HERE / "nvml.c")]
    subprocess.run([*command, "-lpthread"], check=True)
    return library


class Scenario:
    """Answers of the fake, in the language that ``scenario.h`` describes. Changes apply to the next call.

    Args:
        path: The file, which need not exist.
        name: Name of a board in ``tests/nvml/boards``.
        gpus: Number of GPUs.

    Attributes:
        lines: Rest of each line, by scope and key; after a direct change, call `set`.
    """

    def __init__(self, path: Path, name: str = "h100-busy", gpus: int = 1) -> None:
        self.path = path
        self.lines: dict[tuple[str, str], str] = {}
        self.set(*board(name), f"system epoch {time.time()}")
        self.gpus(gpus)

    @property
    def environ(self) -> dict[str, str]:
        """Environment variable with the path of the scenario."""
        return {"FAKE_NVML_SCENARIO": str(self.path)}

    def gpus(self, count: int) -> None:
        """Set the number of GPUs; their UUIDs end in their index."""
        uuid = self.lines["0", "nvmlDeviceGetUUID"]
        more = (
            f"{index} nvmlDeviceGetUUID {uuid[:-2]}{index:02x}\n"
            f"{index} nvmlDeviceGetPciInfo_v3 00000000:{index + 1:02X}:00.0\n"
            f"{index} nvmlDeviceGetMinorNumber {index}"
            for index in range(1, count)
        )
        self.set(f"system nvmlDeviceGetCount_v2 {count}", *more)

    def set(self, *texts: str) -> None:
        """Add lines, or replace those with the same scope and key."""
        for line in "\n".join(texts).splitlines():
            if line and not line.startswith("#"):
                scope, key, words = [*line.split(" ", 2), ""][:3]
                self.lines[scope, key] = words
        self._write()

    def remove(self, *names: str) -> None:
        """Remove lines, given as ``SCOPE KEY``."""
        for name in names:
            scope, key = name.split(" ")
            del self.lines[scope, key]
        self._write()

    def advance(self, key: str, seconds: int) -> None:
        """Move the timestamps of a board's samples forward, to that many seconds after the board's."""
        words = self.lines.get(("*", key), "status").split(" ")
        at = [place for place, word in enumerate(words) if word.startswith("17600")]
        for place in at:
            words[place] = f"{1_760_000_000 + seconds}000000"
        if at:
            self.set(f"* {key} {' '.join(words)}")

    def xid(self, gpu: int, number: int) -> None:
        """Cause an Xid error."""
        earlier = sum(key.startswith("event:") for _, key in self.lines)
        self.set(f"{gpu} event:{earlier + 1} 8 {number}")

    def unload(self) -> None:
        """Unload the driver; the next change loads it again."""
        self.path.unlink()

    def _write(self) -> None:
        new = self.path.with_suffix(".new")
        new.write_text("".join(f"{scope} {key} {words}\n" for (scope, key), words in self.lines.items()))
        new.replace(self.path)


def board(name: str) -> list[str]:
    """Return the lines of a board; ``like OTHER`` includes those of another."""
    lines = (BOARDS / f"{name}.txt").read_text().splitlines()
    return [one for line in lines for one in (board(line[5:]) if line.startswith("like ") else [line])]
