"""The Debian package that `make deb` makes: a daemon that runs, and the files of systemd."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from processes import ROOT, clean_environ

from trackside_daemon import __version__

PATIENCE = 600.0


@pytest.mark.usefixtures("only_soak")
def test_the_package_has_a_daemon_that_runs_and_the_files_of_systemd(tmp_path: Path) -> None:
    def good(*command: str) -> str:
        done = subprocess.run(
            command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    environ = {**clean_environ(), "PIP": f"{sys.executable} -m pip"}
    good(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path))
    (wheel,) = map(str, tmp_path.glob("*.whl"))
    package, root = good("sh", "deploy/deb/build.sh", wheel, str(tmp_path)).splitlines()[-1], tmp_path / "root"
    good("dpkg-deb", "--extract", package, str(root))
    assert (
        good(str(root / "opt/trackside/bin/python"), "-m", "trackside_daemon", "--version").split()[-1] == __version__
    )
    assert (root / "opt/trackside/bin/trackside").read_text().startswith("#!/opt/trackside/bin/python\n")
    assert (root / "usr/bin/trackside").readlink() == Path("/opt/trackside/bin/trackside")
    found = {
        "trackside.service": "usr/lib/systemd/system/trackside.service",
        "trackside.sysusers": "usr/lib/sysusers.d/trackside.conf",
        "trackside.tmpfiles": "usr/lib/tmpfiles.d/trackside.conf",
    }
    for ours, theirs in found.items():
        assert (root / theirs).read_text() == (ROOT / "deploy" / "systemd" / ours).read_text()
    assert good("dpkg-deb", "--info", package, "conffiles") == "/etc/default/trackside\n"


def test_make_gives_pip_only_options_that_it_has() -> None:
    recipe = subprocess.run(["make", "-n", "deb"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    (words,) = re.findall(r"-m pip (wheel .*)", recipe)
    pip = [sys.executable, "-m", "pip", "wheel", "--help"]
    known = subprocess.run(pip, capture_output=True, text=True, check=True).stdout
    assert [word for word in words.split() if word.startswith("--") and word not in known] == []


@pytest.mark.parametrize("script", sorted((ROOT / "deploy" / "deb").iterdir()), ids=lambda path: path.name)
def test_the_scripts_are_shell(script: Path) -> None:
    done = subprocess.run(["sh", "-n", script], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
