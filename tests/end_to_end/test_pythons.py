"""Every supported Python that this machine has, and the oldest supported packages. `make soak` runs all tests with each."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from processes import DEADLINE, ROOT, clean_environ, eventually
from pythons import LOWEST, SUPPORTED, THIS, environment, interpreter

if TYPE_CHECKING:
    from processes import Daemon

SMOKE = Path(__file__).parent / "smoke.py"
WARNINGS = "error::DeprecationWarning,ignore:This process:DeprecationWarning"
"""From Python 3.12 on, os.fork warns of any thread, and the client has one."""

OTHERS = [pytest.param(version, marks=pytest.mark.only_soak) for version in SUPPORTED if version != THIS]
"""Versions that run no other test here; the oldest packages run with the first."""

TRAINING = """
import trackside
trackside.init("old", profile={"steps": 0}).push(step=1, loss=2.0)
trackside.finish()
"""
WRONG_PLAN = "trackside: profile: Expected `int` >= 1 - at `$.steps`; the run goes on without this plan\n"


def run(*command: str | Path, errors: str = "", **environ: str) -> None:
    ran = subprocess.run(
        command, env=clean_environ(environ), capture_output=True, text=True, timeout=DEADLINE, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, errors)


def here(*versions: str) -> str:
    """Return the interpreter of the first of these versions that this machine has."""
    if not (path := interpreter(*versions)):
        pytest.skip(f"this machine has no Python {' or '.join(versions)}")
    return path


@pytest.mark.parametrize("version", OTHERS)
def test_a_supported_python_works_without_a_warning(version: str, place: Path) -> None:
    python = environment(version, here(version), "--editable", ".[daemon]")
    run(python, SMOKE, place, PYTHONPATH=str(ROOT / "tests"), PYTHONWARNINGS=WARNINGS)


@pytest.mark.usefixtures("only_soak")
def test_the_oldest_supported_packages_work(place: Path) -> None:
    python = environment("lowest", here(*LOWEST), "--resolution", "lowest-direct", "--editable", ".[daemon]")
    run(python, SMOKE, place, PYTHONPATH=str(ROOT / "tests"))


def test_a_client_with_the_oldest_supported_packages_reaches_a_daemon(daemon: Daemon) -> None:
    python = environment("lowest-client", here(*LOWEST), "--resolution", "lowest-direct", "--editable", ".")
    run(python, "-W", "error", "-c", TRAINING, errors=WRONG_PLAN, TRACKSIDE_ENDPOINT=daemon.endpoint)
    eventually(lambda: daemon.series().get('trackside_training_loss{rank="0",run="old"}') == 2.0)
