"""The fake driver: compiled for the tests, loaded by the real worker through the unmodified pynvml, told what to say."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

HERE = Path(__file__).parent
BOARDS = HERE.parent / "boards"


def compile_library(directory: Path) -> Path:
    """``libnvidia-ml.so.1`` in the *directory*, by the system's compiler."""
    library = directory / "libnvidia-ml.so.1"
    command = ["cc", "-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror", "-o", str(library), str(HERE / "nvml.c")]
    subprocess.run([*command, "-lpthread"], check=True)
    return library


class Scenario:
    """What the fake says; the language is described in ``scenario.h``. Each change is seen by its next call.

    Args:
        path: The file, which need not exist.
        name: A board of ``tests/nvml/boards``.
        gpus: How many of that board there are.

    Attributes:
        lines: What follows scope and key, by them; after a change by hand, call `say`.
    """

    def __init__(self, path: Path, name: str = "h100-busy", gpus: int = 1) -> None:
        self.path = path
        self.lines: dict[tuple[str, str], str] = {}
        self.say(*board(name), f"system epoch {time.time()}")
        self.gpus(gpus)

    @property
    def environ(self) -> dict[str, str]:
        """The variable that leads the fake here."""
        return {"FAKE_NVML_SCENARIO": str(self.path)}

    def gpus(self, count: int) -> None:
        """So many GPUs of the board; their UUIDs end in their index."""
        uuid = self.lines["0", "nvmlDeviceGetUUID"]
        more = (
            f"{index} nvmlDeviceGetUUID {uuid[:-2]}{index:02x}\n"
            f"{index} nvmlDeviceGetPciInfo_v3 00000000:{index + 1:02X}:00.0\n"
            f"{index} nvmlDeviceGetMinorNumber {index}"
            for index in range(1, count)
        )
        self.say(f"system nvmlDeviceGetCount_v2 {count}", *more)

    def say(self, *texts: str) -> None:
        """Lines that are added, or take the place of others with the same scope and key."""
        for line in "\n".join(texts).splitlines():
            if line and not line.startswith("#"):
                scope, key, words = [*line.split(" ", 2), ""][:3]
                self.lines[scope, key] = words
        self._write()

    def unsay(self, *names: str) -> None:
        """Lines that go, as ``SCOPE KEY``."""
        for name in names:
            scope, key = name.split(" ")
            del self.lines[scope, key]
        self._write()

    def advance(self, key: str, seconds: int) -> None:
        """The samples of a board, which are of one moment, become so many seconds younger than the board has them."""
        words = self.lines.get(("*", key), "status").split(" ")
        at = [place for place, word in enumerate(words) if word.startswith("17600")]
        for place in at:
            words[place] = f"{1_760_000_000 + seconds}000000"
        if at:
            self.say(f"* {key} {' '.join(words)}")

    def xid(self, gpu: int, number: int) -> None:
        """An Xid error, now."""
        told = sum(key.startswith("event:") for _, key in self.lines)
        self.say(f"{gpu} event:{told + 1} 8 {number}")

    def unload(self) -> None:
        """The driver goes; the next change brings it back."""
        self.path.unlink()

    def _write(self) -> None:
        new = self.path.with_suffix(".new")
        new.write_text("".join(f"{scope} {key} {words}\n" for (scope, key), words in self.lines.items()))
        new.replace(self.path)


def board(name: str) -> list[str]:
    """The lines of a board; ``like OTHER`` stands for those of another."""
    lines = (BOARDS / f"{name}.txt").read_text().splitlines()
    return [one for line in lines for one in (board(line[5:]) if line.startswith("like ") else [line])]
