"""Checkpoints: what a run has saved, and what the audits have found, as records and as JSON.

Times are Unix seconds.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

WRITING, COMPLETE, DAMAGED, GONE = "writing", "complete", "damaged", "gone"
STATES = (WRITING, COMPLETE, DAMAGED, GONE)
INT64 = 2**63  # beyond it a step is none, and so is a sequence

_STEP = re.compile(r"(?:step|checkpoint|iter|global)\D{0,3}(\d+)", re.IGNORECASE | re.ASCII)
_NUMBERS = re.compile(r"\d+", re.ASCII)


class CheckedFile(NamedTuple):
    """A file of a checkpoint as of the last audit."""

    name: str  # its path below that of the checkpoint; of a single file, its name
    bytes: int  # its size
    modified: int  # its modification time, in Unix nanoseconds
    inode: int  # its inode number
    sums: tuple[int, ...] = ()  # the CRC-32 of each of its parts; of archives with CRCs, one of all of them


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint. A record of the same run and path replaces the earlier one."""

    run: str  # the id of the run
    path: str  # its absolute path: a file or a folder
    attempt: int  # the attempt that wrote it
    time: float  # when it was written
    found: str  # how it was found: ``event``, ``open`` or ``directory``
    state: str = WRITING  # one of `STATES`
    step: int | None = None  # its step; None if unknown
    # ``torch``, ``safetensors``, ``dcp``, ``transformers``, ``accelerate``, ``lightning``, ``trackside`` or ``files``;
    # empty before the first audit.
    format: str = ""
    bytes: int = 0  # its size
    checked: float | None = None  # when it was found to be intact or damaged; None before
    file: str = ""  # the damaged file
    reason: str = ""  # why it is damaged, or why it cannot be checked, in one line
    metrics: Mapping[str, float] = field(default_factory=dict)  # numbers that the training reported for it
    files: tuple[CheckedFile, ...] = ()  # its files as of the last audit that found them intact
    # Its place in the order of saving, in Unix microseconds, as `trackside.Checkpoints` reports it, which no clock
    # moves; 0 if unknown.
    sequence: int = 0

    @property
    def good(self) -> bool:
        """True if an audit has found it intact."""
        return self.state == COMPLETE and self.checked is not None

    @property
    def order(self) -> tuple[float, int]:
        """The key that sorts checkpoints from the oldest to the newest."""
        return saving_order(self.sequence, self.time, self.step)


def saving_order(sequence: int, time: float, step: int | None) -> tuple[float, int]:
    """Return `Checkpoint.order` of a checkpoint."""
    return sequence / 1e6 or time, -1 if step is None else step


def as_json(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return a checkpoint as the API has it: without checksums, and with the number of its files."""
    fields = {name: getattr(checkpoint, name) for name in checkpoint.__slots__ if name != "files"}
    return {**fields, "metrics": dict(checkpoint.metrics), "files": len(checkpoint.files), "good": checkpoint.good}


def reported_step(fields: Mapping[str, Any], pushed: int | None) -> int | None:
    """Return the step of a checkpoint that an event reports: its field, else the one pushed last, else that of its name."""
    named = step_of(str(fields.get("path", "")).rpartition("/")[2]) if pushed is None else None
    found = (fields.get("step"), pushed, named)
    return next((one for one in found if isinstance(one, int) and abs(one) < INT64), None)


def step_of(name: str) -> int | None:
    """Return the step that the name of a checkpoint has; None if it has no number."""
    named = _STEP.findall(name) or _NUMBERS.findall(name)
    return int(named[-1]) if named and len(named[-1]) < 19 else None


def shape_of(name: str) -> str:
    """Return a name with ``#`` in place of its numbers, the same for all checkpoints of a series."""
    return _NUMBERS.sub("#", name)
