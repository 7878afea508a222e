"""Ask ``nvidia-smi`` for columns of its query."""

from __future__ import annotations

import csv
import re
import shutil
import subprocess
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

SECONDS = 60.0
PLACES = (
    "/usr/bin",
    "/usr/local/bin",
    "/usr/local/nvidia/bin",
    "/usr/lib/wsl/lib",
    "/opt/nvidia/bin",
    "/run/nvidia/driver/usr/bin",
)


class NoNvidiaSmiError(Exception):
    """There is no nvidia-smi, or it fails."""


class Answer(NamedTuple):
    """An answer of nvidia-smi.

    Attributes:
        rows: For each GPU, the text of each column that the GPU supports.
        refused: Columns that this nvidia-smi does not have.
    """

    rows: list[dict[str, str]]
    refused: list[str]


def command() -> str:
    """Return the path of nvidia-smi, also if it is not in $PATH.

    Raises:
        NoNvidiaSmiError: There is none.
    """
    for directory in (None, *PLACES):
        if path := shutil.which("nvidia-smi", path=directory):
            return path
    raise NoNvidiaSmiError(f"nvidia-smi is neither in $PATH nor in {', '.join(PLACES)}")


def query(columns: Iterable[str]) -> Answer:
    """Return these columns of all GPUs, and ``uuid``; a version that lacks a column refuses the query and names it.

    Raises:
        NoNvidiaSmiError: It cannot be run, or fails for another reason.
    """
    asked = ["uuid", *columns]
    refused: list[str] = []
    while True:
        done = _run(f"--query-gpu={','.join(asked)}")
        if not done.returncode:
            return Answer([_row(asked, cells) for cells in csv.reader(done.stdout.splitlines())], refused)
        unknown = re.findall(r'Field "([^"]+)" is not a valid field', done.stdout + done.stderr)
        if not set(unknown) & set(asked[1:]):
            raise NoNvidiaSmiError(
                f"nvidia-smi fails with status {done.returncode}: {done.stdout}{done.stderr}".strip()
            )
        refused += unknown
        asked = [column for column in asked if column not in unknown]


def process_memory() -> dict[int, float]:
    """Return the bytes of each process that computes on a GPU, by its pid; of several GPUs, the sum."""
    used: dict[int, float] = {}
    for cells in csv.reader(_run("--query-compute-apps=pid,used_memory").stdout.splitlines()):
        if len(cells) == 2 and cells[0].strip().isdigit() and cells[1].strip().isdigit():
            used[int(cells[0])] = used.get(int(cells[0]), 0.0) + float(cells[1]) * 2**20
    return used


def _row(columns: list[str], cells: list[str]) -> dict[str, str]:
    texts = zip(columns, (cell.strip() for cell in cells), strict=True)
    return {column: text for column, text in texts if text not in {"", "N/A"} and not text.startswith("[")}


def _run(argument: str) -> subprocess.CompletedProcess[str]:
    options = [command(), argument, "--format=csv,noheader,nounits"]
    try:
        return subprocess.run(options, capture_output=True, text=True, check=False, timeout=SECONDS)
    except (OSError, subprocess.SubprocessError) as error:
        raise NoNvidiaSmiError(f"nvidia-smi cannot be run: {error}") from error
