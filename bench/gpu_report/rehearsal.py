"""A GPU machine made of fakes: the C driver of the tests, and an ``nvidia-smi`` that reads the same scenario."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from nvml.fake import nvidia_smi
from nvml.fake.library import Scenario, compile_library

BOARD = "h100-busy"


def environ(place: Path) -> dict[str, str]:
    """Return the variables with which every process sees the fakes, which are made in a directory.

    Raises:
        OSError: There is no compiler.
        subprocess.CalledProcessError: The driver cannot be compiled.
    """
    scenario = Scenario(place / "scenario", BOARD)
    library = compile_library(place)
    write_command(place)
    path = f"{place}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    return {"LD_LIBRARY_PATH": str(library.parent), "PATH": path, **scenario.environ}


def write_command(place: Path) -> None:
    """Write the command ``nvidia-smi`` into a directory."""
    command = place / "nvidia-smi"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{nvidia_smi.__file__}" "$@"\n')
    command.chmod(0o755)


def write_environ(directory: str) -> None:
    """Make the fakes in a directory, and write their variables to its file ``environ``."""
    place = Path(directory)
    place.mkdir(parents=True, exist_ok=True)
    lines = [f"{name}={value}\n" for name, value in environ(place).items()]
    (place / "environ").write_text("".join(lines))
