"""deploy/slurm without Slurm: the page installs every script before use, and other output of sinfo is an error."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml
from end_to_end.listening import Listening
from processes import ROOT, eventually, http

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


DRAINED = ROOT / "deploy/slurm/file_sd.py"


def listed(place: Path, *lines: str) -> str:
    """Return the targets of a sinfo that prints these lines."""
    (place / "sinfo").write_text("#!/bin/sh\n" + "".join(f"echo '{line}'\n" for line in lines))
    (place / "sinfo").chmod(0o755)
    return subprocess.run(
        [sys.executable, DRAINED], env={"PATH": str(place)}, capture_output=True, text=True, check=True
    ).stdout


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus is not installed")
def test_only_up_has_the_state_of_a_drained_node(tmp_path: Path) -> None:
    """Prometheus with the job of the page: the series of a node are the same before, while and after it is drained."""
    (block,) = (text for language, text in BLOCKS if language == "yaml" and "scrape_configs" in text)
    (job,) = yaml.safe_load(block)["scrape_configs"]
    job["file_sd_configs"] = [{"files": [f"{tmp_path}/sd.json"], "refresh_interval": "1s"}]
    config = {"global": {"scrape_interval": "200ms", "scrape_timeout": "200ms"}, "scrape_configs": [job]}
    (tmp_path / "prometheus.yml").write_text(json.dumps(config))
    flags = (f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data")
    with ExitStack() as ends:
        prometheus = Listening("prometheus", *flags, "--web.listen-address=127.0.0.1:0")
        ends.callback(prometheus.stop)
        address = prometheus.url.removeprefix("http://")

        def labels(series: str) -> list[str]:
            answer = http.get(f"{prometheus.url}/api/v1/query", params={"query": series}).json()["data"]["result"]
            return sorted(one["metric"].get("node_state", "") for one in answer)

        for state, label in (("idle", ""), ("drained*", "drained"), ("mixed", "")):
            targets = json.loads(listed(tmp_path, f"gpu1|127.0.0.1|{state}"))
            targets[0]["targets"] = [address]
            (tmp_path / "new.json").write_text(json.dumps(targets))
            (tmp_path / "new.json").replace(tmp_path / "sd.json")
            eventually(lambda label=label: labels('up{instance="gpu1"}') == [label])  # type: ignore[misc]
            eventually(lambda: labels('prometheus_build_info{instance="gpu1"}') == [""])


STATES = {
    "": "idle alloc mixed- planned down down* allocated@ idle! unknown",
    "drained": "drained drained* drained^",
    "draining": "draining draining@",
    "maint": "maint maint* down$ allocated$",
    "reboot": "reboot^ reboot down^ down@ mixed^",
    "powering_up": "powering_up idle# mixed# allocated# down#",
    "fail": "fail fail*",
    "failing": "failing",
    "off": "idle~ idle% drained~ powering_down powered_down power_down",
}
"""States as Slurm's node_state_string writes them, by the label node_state."""


def test_a_node_in_maintenance_or_that_boots_has_a_state_and_one_that_is_down_has_none(tmp_path: Path) -> None:
    known = {f"{label}/{state}": label for label, states in STATES.items() for state in states.split()}
    lines = (f"{name}|192.0.2.1|{name.partition('/')[2]}" for name in known)
    found = {one["labels"]["instance"]: one["labels"] for one in json.loads(listed(tmp_path, *lines))}
    assert {name: labels.get("node_state", "") for name, labels in found.items()} == {
        name: label for name, label in known.items() if label != "off"
    }


def test_an_address_of_ipv6_has_brackets(tmp_path: Path) -> None:
    (found,) = json.loads(listed(tmp_path, "gpu1|fd00::1|idle"))
    assert found["targets"] == ["[fd00::1]:21790"]


def test_the_list_is_empty_while_all_nodes_are_powered_down(tmp_path: Path) -> None:
    assert json.loads(listed(tmp_path, "gpu1|192.0.2.1|idle~", "gpu2|192.0.2.2|powering_down")) == []


def test_unrequested_output_of_sinfo_is_an_error_of_one_line(tmp_path: Path) -> None:
    sinfo = tmp_path / "sinfo"
    sinfo.write_text("#!/bin/sh\necho 'gpu1|192.0.2.1|idle|more'\n")
    sinfo.chmod(0o755)
    asked = [sys.executable, str(ROOT / "deploy/slurm/file_sd.py")]
    done = subprocess.run(asked, env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False)
    reported = "file_sd.py: sinfo printed 'gpu1|192.0.2.1|idle|more' instead of NAME|ADDRESS|STATE\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", reported)
