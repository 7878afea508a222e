"""The wheel, not the tree: its contents, and the packages that a training process needs for it."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest
from processes import ROOT, clean_environ

PATIENCE = 300.0
"""Seconds for what builds and installs."""
GRAFANA = {
    str(file.relative_to(ROOT / "grafana"))
    for folder in ("dashboards", "provisioning")
    for file in (ROOT / "grafana" / folder).rglob("*.*")
}
"""The files for Grafana, from the root of theirs."""


def run(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a command without this tree's Python settings."""
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
    good(run(sys.executable, "-m", "venv", "--without-pip", environment, cwd=environment))
    good(pip(environment / "bin", "--quiet", "install", "--no-compile", wheel))
    return environment / "bin"


def pip(programs: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run this Python's pip for another environment, which saves the installation of another one."""
    start: list[str | Path] = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        programs / "python",
        "--disable-pip-version-check",
    ]
    return run(*start, *arguments, cwd=programs)


def test_the_wheel_holds_both_packages_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0].removesuffix(".dist-info").removesuffix(".data") for name in names} == {
        "trackside",
        "trackside_daemon",
        wheel.name.removesuffix("-py3-none-any.whl"),
    }
    place = ROOT / "daemon" / "trackside_daemon" / "web" / "static"
    static = {str(path.relative_to(place)) for path in place.rglob("*") if path.is_file()}
    assert static
    expected = {f"trackside_daemon/web/static/{name}" for name in static}
    expected |= {"trackside/py.typed", "trackside_daemon/py.typed"}
    expected |= {f"trackside_daemon/grafana/{name}" for name in GRAFANA}
    assert expected <= set(names)
    assert not [name for name in names if name.startswith("tests/") or name.endswith((".pyc", ".ipynb"))]


def test_the_wheel_brings_what_systemd_needs(installed: Path) -> None:
    """The files are where docs/install.md copies them from."""
    place, brought = ROOT / "deploy" / "systemd", installed.parent / "share" / "trackside" / "systemd"
    files = {path.relative_to(place): path.read_bytes() for path in place.rglob("*") if path.is_file()}
    assert Path("trackside.service") in files
    assert {path.relative_to(brought): path.read_bytes() for path in brought.rglob("*") if path.is_file()} == files


@pytest.mark.usefixtures("only_soak")
def test_a_release_is_whole_and_built_twice_it_is_the_same_byte_for_byte(wheel: Path, tmp_path: Path) -> None:
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir"]
    good(run(*build, tmp_path / "first", ROOT, cwd=tmp_path))  # the wheel is made of the unpacked source distribution
    [source] = (tmp_path / "first").glob("*.tar.gz")
    with tarfile.open(source) as archive:
        archive.extractall(tmp_path, filter="data")
    unpacked = tmp_path / source.name.removesuffix(".tar.gz")
    left_out = {name for name in good(run("git", "ls-files", cwd=ROOT)).splitlines() if not (unpacked / name).exists()}
    assert {name.split("/")[0] for name in left_out} <= {".ci", ".github", "Makefile", "bench", "tests"}
    good(run(*build, tmp_path / "second", unpacked, cwd=tmp_path))
    for folder, name in (("first", wheel.name), ("second", wheel.name), ("second", source.name)):
        original = wheel if name == wheel.name else source
        assert (tmp_path / folder / name).read_bytes() == original.read_bytes(), (folder, name)


def test_an_installed_user_gets_the_dashboards(installed: Path, tmp_path: Path) -> None:
    libraries = sysconfig.get_path("purelib")  # what the extra [daemon] would bring; it comes last, after the wheel
    code = f"import sys; sys.path.append({libraries!r}); from trackside_daemon.__main__ import main; main()"
    printed = good(run(installed / "python", "-c", code, "dashboards", tmp_path / "grafana", cwd=tmp_path))
    assert printed.count("\n") == len(GRAFANA - {"dashboards/.lint", "dashboards/kustomization.yaml"})
    got = {one.name: one.read_bytes() for one in (tmp_path / "grafana" / "dashboards" / "trackside").iterdir()}
    assert got == {one.name: one.read_bytes() for one in (ROOT / "grafana" / "dashboards").glob("*.json")}


def test_a_training_pays_for_two_packages_only(installed: Path) -> None:
    listed = json.loads(good(pip(installed, "list", "--format=json")))
    assert {one["name"] for one in listed} == {"trackside", "pyzmq", "msgspec"}


def test_a_bare_client_imports_pushes_and_finishes(installed: Path) -> None:
    training = "import trackside\ntrackside.push(step=1, loss=2.0)\ntrackside.finish()\nprint(trackside.__file__)"
    printed = good(run(installed / "python", "-W", "error", "-c", training, cwd=installed))
    assert Path(printed.strip()).is_relative_to(installed.parent)


def test_an_extra_is_added_to_what_is_installed_without_asking_an_index_for_it(installed: Path) -> None:
    """Messages of missing packages name this command, also where no index has this project."""
    added = good(pip(installed, "install", "--dry-run", "--no-index", "--no-deps", "trackside[daemon,arrow]"))
    assert "Requirement already satisfied: trackside[arrow,daemon]" in added


def test_a_bare_client_names_what_brings_the_command(installed: Path) -> None:
    answer = run(installed / "trackside", "daemon", cwd=installed)
    assert (answer.returncode, answer.stdout) == (2, "")
    assert answer.stderr.count("\n") == 1
    assert "pip install 'trackside[daemon]'" in answer.stderr
