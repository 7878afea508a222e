"""The unit and its drop-ins: systemd accepts them, and rates their exposure."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from processes import DEADLINE, ROOT

PLACE = ROOT / "deploy" / "systemd"
UNIT = PLACE / "trackside.service"
DROP_INS = sorted((PLACE / "trackside.service.d").glob("*.conf"))
UNITS = Path("/usr/lib/systemd/system")


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, check=False)


def put(directory: Path, *drop_ins: str) -> Path:
    """Copy the unit and some of its drop-ins to a directory; return the path of the unit."""
    (directory / "trackside.service.d").mkdir(parents=True)
    for name in drop_ins:
        shutil.copy(PLACE / "trackside.service.d" / name, directory / "trackside.service.d")
    return Path(shutil.copy(UNIT, directory))


@pytest.mark.parametrize(
    ("drop_ins", "most"),
    [((), 2.0), (("options.conf",), 2.0), (("ptrace.conf",), 2.2), (("clock.conf",), 2.3)],
    ids=lambda one: "+".join(("unit", *one)) if isinstance(one, tuple) else str(one),
)
def test_little_is_exposed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], drop_ins: tuple[str, ...], most: float
) -> None:
    unit = put(tmp_path, *drop_ins)
    asked = run("systemd-analyze", "security", "--offline=true", f"--threshold={round(10 * most)}", "--no-pager", unit)
    figure = re.search(r"exposure level for .*?: ([\d.]+)", asked.stdout)
    assert figure is not None, asked.stdout + asked.stderr
    with capsys.disabled():
        print(f"\nexposure of {'+'.join((unit.name, *drop_ins))}: {figure[1]}, at most {most}")  # noqa: T201  the figure is for people
    assert asked.returncode == 0, asked.stdout


def test_systemd_finds_no_fault(tmp_path: Path) -> None:
    """Verify the unit in a root directory with trackside installed and the units of this machine."""
    shutil.copytree(UNITS, tmp_path / UNITS.relative_to("/"), symlinks=True)
    unit = put(tmp_path / "etc/systemd/system", *(one.name for one in DROP_INS))
    for program in ("opt/trackside/bin/trackside", "bin/kill"):
        (tmp_path / program).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy("/bin/true", tmp_path / program)
    checked = run("systemd-analyze", "verify", "--man=no", f"--root={tmp_path}", unit.name)
    ours = [line for line in checked.stderr.splitlines() if "trackside" in line]
    assert (checked.returncode, ours) == (0, []), checked.stderr

    unit.write_text(unit.read_text().replace("WatchdogSec=60", "WatchdogSec=often"))
    assert "trackside.service:" in run("systemd-analyze", "verify", "--man=no", f"--root={tmp_path}", unit.name).stderr


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give directories to others")
def test_user_group_and_spool_are_created(tmp_path: Path) -> None:
    """Run in a root directory for the test, without changes to this machine."""
    (tmp_path / "etc").mkdir()
    made = run("systemd-sysusers", f"--root={tmp_path}", PLACE / "trackside.sysusers")
    assert made.returncode == 0, made.stderr
    users, groups = ((tmp_path / "etc" / name).read_text() for name in ("passwd", "group"))
    assert re.search(r"^trackside:x:(\d+):(\d+):trackside daemon:/var/lib/trackside:\S*nologin$", users, re.MULTILINE)
    assert re.search(r"^trackside:x:\d+:$", groups, re.MULTILINE)
    planned = PLACE / "trackside.tmpfiles"
    made = run("systemd-tmpfiles", f"--root={tmp_path}", "--create", planned)
    assert made.returncode == 0, made.stderr
    assert (tmp_path / "var/lib/trackside").stat().st_mode & 0o7777 == 0o750
    assert (tmp_path / "var/lib/trackside/spool").stat().st_mode & 0o7777 == 0o3770
    assert {line.split()[0] for line in planned.read_text().splitlines() if not line.startswith("#")} == {"d"}


def test_group_directory_and_state_are_those_that_clients_use() -> None:
    from trackside.environment import discovery, paths
    from trackside_daemon.ingest import endpoint

    text = UNIT.read_text()
    for line in (
        f"User={endpoint.GROUP}",
        f"Group={endpoint.GROUP}",
        f"RuntimeDirectory={discovery.SYSTEM_SOCKET_DIRECTORY.relative_to('/run')}",
        f"StateDirectory={paths.SYSTEM_DIRECTORY.relative_to('/var/lib')}",
    ):
        assert f"\n{line}\n" in text


def test_files_that_the_page_copies_exist_and_reach_the_directories_of_systemd(tmp_path: Path) -> None:
    """Run each `install` of the pages below a root directory for the test."""
    pages = "".join((ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8") for name in ("install", "upgrading"))
    blocks = "".join(re.findall(r"```sh\n(.*?)```", pages, re.DOTALL))
    lines = [line for line in blocks.splitlines() if line.startswith("install ")]
    assert len(lines) == 7
    for line in lines:
        moved = line.replace("/opt/trackside/share/trackside/systemd", str(PLACE)).replace(
            " /etc/", f" {tmp_path}/etc/"
        )
        done = subprocess.run(shlex.split(moved), cwd=PLACE, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    copied = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert copied == {
        "etc/sysusers.d/trackside.conf",
        "etc/tmpfiles.d/trackside.conf",
        "etc/systemd/system/trackside.service",
        "etc/systemd/system/trackside.service.d/ptrace.conf",
    }
