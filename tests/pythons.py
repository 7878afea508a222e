"""The supported versions of Python that this machine has, each with an environment; as a script, all tests with each of them.

Interpreters are those on PATH and those of pyenv. The environments are in build/pythons, and stay until pyproject.toml changes.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
SUPPORTED = tuple(re.findall(r'"Programming Language :: Python :: (3\.\d+)"', _PROJECT))
THIS = f"3.{sys.version_info[1]}"

LOWEST = ("3.10", "3.11")
"""Versions for which the oldest supported packages have builds."""


@cache
def interpreter(*versions: str) -> str:
    """Return the path of the first of these versions that this machine has; empty for none."""
    return next((path for version in versions if (path := _interpreter(version))), "")


def _interpreter(version: str) -> str:
    if version == THIS:
        return sys.executable
    on_path = shutil.which(f"python{version}") or ""  # pyenv's fails where pyenv has not chosen the version
    for path in filter(None, (on_path, *map(str, Path.home().glob(f".pyenv/versions/{version}.*/bin/python")))):
        asked = subprocess.run([path, "-V"], capture_output=True, text=True, check=False)
        if asked.stdout.startswith(f"Python {version}."):
            return path
    return ""


def environment(name: str, path: str, *install: str) -> Path:
    """Return the Python of an environment of an interpreter, made by ``uv pip install`` if it is not there.

    Raises:
        subprocess.CalledProcessError: Something could not be installed; the message is on standard error.
    """
    place = ROOT / "build" / "pythons" / name
    python, stamp = place / "bin" / "python", place / "installed"
    wanted = "\n".join([path, *install, _PROJECT])
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != wanted:
        _uv("venv", "--clear", "--python", path, str(place))
        _uv("pip", "install", "--python", str(python), *install)
        stamp.write_text(wanted, encoding="utf-8")
    return python


def _uv(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "uv", "--quiet", *arguments], cwd=ROOT, check=True)
