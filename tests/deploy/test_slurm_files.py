"""deploy/slurm without Slurm: the page installs every script before use, and other output of sinfo is an error."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from processes import ROOT

PAGE = (ROOT / "docs" / "slurm.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", PAGE, re.DOTALL)


def test_every_script_that_slurm_or_cron_starts_is_installed_before_and_in_a_directory_that_is_made() -> None:
    known: set[str] = set()
    named: set[str] = set()
    for language, text in BLOCKS:
        if language == "sh":
            for directory, files in re.findall(r"install -D --target-directory=(\S+) (.*)", text):
                assert all((ROOT / file).stat().st_mode & 0o111 for file in files.split())
                known |= {f"{directory}/{Path(file).name}" for file in files.split()}
            known |= set(re.findall(r"install -d \S+ (\S+)", text))
        elif not language:
            found = set(re.findall(r"/etc/slurm/trackside/[\w.-]+", text))
            found |= {str(Path(file).parent) for file in re.findall(r"--output (\S+)", text)}
            assert found <= known
            named |= found
    assert len(named) == 5


def test_each_script_is_installed_before_slurm_is_configured_with_it() -> None:
    before, _, _ = PAGE.partition("Prolog=/etc")
    tested = set(re.findall(r"-x ([\w.-]+)", before))
    assert {f"/etc/slurm/trackside/{name}" for name in tested} == set(re.findall(r"(?m)^\w+=(/etc/slurm/\S+)", PAGE))


def test_unrequested_output_of_sinfo_is_an_error_of_one_line(tmp_path: Path) -> None:
    sinfo = tmp_path / "sinfo"
    sinfo.write_text("#!/bin/sh\necho 'gpu1|192.0.2.1|idle|more'\n")
    sinfo.chmod(0o755)
    asked = [sys.executable, str(ROOT / "deploy/slurm/file_sd.py")]
    done = subprocess.run(asked, env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False)
    reported = "file_sd.py: sinfo printed 'gpu1|192.0.2.1|idle|more' instead of NAME|ADDRESS|STATE\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", reported)
