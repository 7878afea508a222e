"""deploy/Dockerfile, parsed as far as possible without an engine."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from fnmatch import fnmatch
from typing import TYPE_CHECKING, NamedTuple

from processes import ROOT

if TYPE_CHECKING:
    from pathlib import Path

FILE = ROOT / "deploy" / "Dockerfile"
IGNORED = FILE.with_name("Dockerfile.dockerignore")


class Instruction(NamedTuple):
    """A Dockerfile instruction, such as ``ENTRYPOINT``, and the rest of its line."""

    name: str
    rest: str


def instructions() -> list[Instruction]:
    """Return all instructions in order, without comments, each on one line."""
    lines = [line for line in FILE.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    whole = "\n".join(lines).replace("\\\n", " ").splitlines()
    return [Instruction(*line.split(maxsplit=1)) for line in whole if line.strip()]


def last(name: str) -> str:
    """Return the text after the last instruction of that name."""
    return [one.rest for one in instructions() if one.name == name][-1]


def command(name: str) -> list[str]:
    """Return an ENTRYPOINT, a CMD or a HEALTHCHECK's CMD in its exec form."""
    found: list[str] = json.loads(re.sub(r"^.*?(?=\[)", "", last(name)))
    return found


def environ() -> dict[str, str]:
    """Return the variables that ENV sets."""
    pairs = [pair.partition("=") for pair in shlex.split(last("ENV"))]
    return {name: text for name, _, text in pairs}


def copy_context(to: Path) -> None:
    """Copy the files that the build sees: the paths that the ignore file lets in again, without ``__pycache__``."""
    lines = [line for line in IGNORED.read_text(encoding="utf-8").splitlines() if line and line[0] != "#"]
    assert lines[0] == "*"
    for name in (line[1:] for line in lines if line[0] == "!"):
        source, target = ROOT / name, to / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(
                source, target, ignore=lambda _, names: [one for one in names if fnmatch(one, "__pycache__")]
            )
        else:
            shutil.copy(source, target)
