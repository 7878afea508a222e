"""Measure how fast a command prints with and without `trackside run --console`.

Usage: python bench/console.py [MEBIBYTES]

"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

MEBIBYTES = 100
LAUNCH = "0123456789abcdef"
PRINTS = """
import os, sys, time
piece = open(sys.argv[1], "rb").read()
begun = time.monotonic()
for _ in range(int(sys.argv[2]) * 2**20 // len(piece)):
    left = memoryview(piece)
    while left:
        left = left[os.write(1, left) :]
open(sys.argv[3], "w").write(str(time.monotonic() - begun))
"""
COPIED = """
import sys, time
from pathlib import Path
from trackside_daemon.cli.run.console import Console
from trackside_daemon.linux.child_process import Command
console = Console(Path(sys.argv[1]), sys.argv[2])
command = Command(sys.argv[3:], {}, console.streams)
console.start()
while command.status is None:
    time.sleep(0.005)
command.reap()
console.stop()
"""


def outputs() -> dict[str, bytes]:
    """Return a MiB of each kind of output."""
    chance = random.Random(4711)
    lines = (
        f"step {step} loss={chance.random():.4f} grad_norm={chance.random():.3f} tokens/s={step * 7}\n"
        for step in range(20_000)
    )
    bars = (
        f"\r{step // 200:3d}%|{'█' * (step // 2000):30}| {step}/20000 [00:12<01:00, {chance.random() * 99:.2f}it/s]"
        for step in range(20_000)
    )
    colours = (
        f"\x1b[32mINFO\x1b[0m token {step}: \x1b[1mpassword\x1b[0m: {chance.random()}\n" for step in range(20_000)
    )
    texts = {"lines": "".join(lines), "progress bars": "".join(bars), "colours and secrets": "".join(colours)}
    return {**{name: text.encode()[: 2**20] for name, text in texts.items()}, "binary": chance.randbytes(2**20)}


def printing(place: Path, piece: bytes, size: int, *, console: bool, terminal: bool) -> float:
    """Return the seconds in which a command prints *size* MiB."""
    (place / "piece").write_bytes(piece)
    command = [sys.executable, "-c", PRINTS, str(place / "piece"), str(size), str(place / "seconds")]
    if console:
        command = [sys.executable, "-c", COPIED, str(place), LAUNCH, *command]
    reading, writing = os.openpty() if terminal else os.pipe()
    drain = threading.Thread(target=_drain, args=(reading,))
    drain.start()
    subprocess.run(command, stdin=subprocess.DEVNULL, stdout=writing, check=True)
    os.close(writing)
    drain.join()
    return float((place / "seconds").read_text())


def _drain(reading: int) -> None:
    with suppress(OSError):  # a terminal whose other end is closed
        while os.read(reading, 2**20):
            pass
    os.close(reading)


def main() -> None:
    """Print the table."""
    size = int(sys.argv[1]) if len(sys.argv) > 1 else MEBIBYTES
    print("\n| output | to a | without, MB/s | --console, MB/s |\n|---|---|---:|---:|")
    for name, piece in outputs().items():
        for terminal in (False, True):
            rates = []
            for console in (False, True):
                with tempfile.TemporaryDirectory() as place:
                    seconds = printing(Path(place), piece, size, console=console, terminal=terminal)
                    rates.append(size * 2**20 / 1e6 / seconds)
            to = "terminal" if terminal else "pipe"
            print(f"| {name} | {to} | {rates[0]:,.0f} | {rates[1]:,.0f} |")


if __name__ == "__main__":
    main()
