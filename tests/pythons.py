"""The supported versions of Python that this machine has, each with an environment; as a script, all tests with each of them.

Interpreters are those on PATH and those of pyenv, environments are in build/pythons. The script has the newest packages in each,
and then the lowest versions that pyproject.toml permits; its arguments choose among that, such as ``3.10 lowest``.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

from fork_server import LARGE

ROOT = Path(__file__).resolve().parent.parent
_PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
SUPPORTED = tuple(re.findall(r'"Programming Language :: Python :: (3\.\d+)"', _PROJECT))
THIS = f"3.{sys.version_info[1]}"

LOWEST = ("3.10", "3.11")
"""Versions for which the lowest permitted packages have builds."""
EXTRAS = "daemon,apprise,fleet,otlp,plots,wandb"
"""The extras of packages whose lowest versions are tested; tests/oldest.txt has those of the integrations."""

RESULTS = {True: "passed", False: "failed", None: "this machine has no such Python"}


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


def run_all_tests(name: str) -> bool | None:
    """Run all tests with a version of Python or with the lowest packages; return whether they pass, None without that Python."""
    path = interpreter(*(LOWEST if name == "lowest" else (name,)))
    if not path:
        return None
    place = ROOT / "build" / "pythons" / f"{name}-tests"
    python = str(place / "bin" / "python")
    _uv("venv", "--clear", "--seed", "--python", path, str(place))
    constraints = ROOT / "tests" / "constraints.txt"  # PyTorch's version
    torch = f"{constraints.read_text(encoding='utf-8').strip()}+cpu"  # the other builds take gigabytes
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-compile", "--no-deps", torch]
    absent = set() if subprocess.run(pip, stderr=subprocess.DEVNULL, check=False).returncode == 0 else set(LARGE)
    if name == "lowest":
        absent.add("mcp")  # it needs newer packages
        _uv("pip", "install", "--python", python, "--resolution", "lowest-direct", "--editable", f".[{EXTRAS}]")
    overrides = place / "absent.txt"
    overrides.write_text("".join(f"{one}; python_version < '3'\n" for one in absent), encoding="utf-8")
    chosen = ("--overrides", str(overrides), "--constraints", str(constraints))
    _uv("pip", "install", "--python", python, *chosen, "--editable", ".[dev]")
    _report(f"all tests with {name}, without {', '.join(sorted(absent)) or 'nothing'}")
    # What an old package calls may be deprecated in a newer one.
    warnings = ["-W", "ignore::DeprecationWarning"] if name == "lowest" else []
    options = ["--processes", "12", "--repeat-failed", "--ignore=tests/end_to_end/test_pythons.py", *warnings]
    return subprocess.run([python, "-m", "pytest", *options], cwd=ROOT, check=False).returncode == 0


def _uv(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "uv", "--quiet", *arguments], cwd=ROOT, check=True)


def _report(line: str) -> None:
    sys.stdout.write(f"\n== {line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    names = sys.argv[1:] or [*(version for version in SUPPORTED if version != THIS), "lowest"]
    passed = {name: run_all_tests(name) for name in names}
    _report("; ".join(f"{name}: {RESULTS[passed[name]]}" for name in names))
    sys.exit(False in passed.values())
