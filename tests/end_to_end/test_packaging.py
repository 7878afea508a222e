"""The wheel, not the tree: what it holds, and what a training process pays for it."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from processes import ROOT, clean_environ

PATIENCE = 300.0
"""Seconds for what builds and installs."""


def run(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A command that knows nothing of this tree."""
    environ = {name: value for name, value in clean_environ().items() if not name.startswith("PYTHON")}
    return subprocess.run(
        arguments, cwd=cwd, env=environ, capture_output=True, text=True, timeout=PATIENCE, check=False
    )


def good(answer: subprocess.CompletedProcess[str]) -> str:
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return answer.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    build: list[str | Path] = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT]
    good(run(*build, cwd=folder))
    [built] = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an empty environment that the wheel alone was installed into."""
    environment = tmp_path_factory.mktemp("environment")
    good(run(sys.executable, "-m", "venv", environment, cwd=environment))
    pip: list[str | Path] = [environment / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "--quiet"]
    good(run(*pip, "install", wheel, cwd=environment))
    return environment / "bin"


def test_the_wheel_holds_both_packages_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0].removesuffix(".dist-info") for name in names} == {
        "trackside",
        "trackside_daemon",
        wheel.name.removesuffix("-py3-none-any.whl"),
    }
    static = {path.name for path in (ROOT / "daemon" / "trackside_daemon" / "web" / "static").iterdir()}
    assert static
    expected = {f"trackside_daemon/web/static/{name}" for name in static}
    expected |= {"trackside/py.typed", "trackside_daemon/py.typed"}
    assert expected <= set(names)
    assert not [name for name in names if "test_" in name or name.endswith((".pyc", ".ipynb"))]


def test_a_training_pays_for_two_packages_only(installed: Path) -> None:
    listed = json.loads(good(run(installed / "pip", "list", "--format=json", cwd=installed)))
    assert {one["name"] for one in listed} - {"pip", "setuptools"} == {"trackside", "pyzmq", "msgspec"}


def test_a_bare_client_imports_pushes_and_finishes(installed: Path) -> None:
    training = "import trackside\ntrackside.push(step=1, loss=2.0)\ntrackside.finish()\nprint(trackside.__file__)"
    printed = good(run(installed / "python", "-W", "error", "-c", training, cwd=installed))
    assert Path(printed.strip()).is_relative_to(installed.parent)


def test_a_bare_client_says_what_brings_the_command(installed: Path) -> None:
    answer = run(installed / "trackside", "daemon", cwd=installed)
    assert (answer.returncode, answer.stdout) == (2, "")
    assert answer.stderr.count("\n") == 1
    assert "pip install 'trackside[daemon]'" in answer.stderr
