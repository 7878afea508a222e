"""The shipped scrape configurations: Prometheus and VictoriaMetrics accept them, and they agree."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from documents import documented
from processes import DEADLINE, ROOT

if TYPE_CHECKING:
    from pathlib import Path

PLACE = ROOT / "deploy" / "prometheus"
FILES = {
    "prometheus.yml": ["promtool", "check", "config"],
    "prometheus-file-sd.yml": ["promtool", "check", "config"],
    "prometheus-central.yml": ["promtool", "check", "config"],
    "prometheus-agent.yml": ["promtool", "check", "config", "--agent"],
    "victoriametrics.yml": ["victoria-metrics", "-dryRun", "-promscrape.config.strictParse"],
}
"""Each file with the command that checks it."""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A copy of the configuration in which the example of targets is an active file."""
    copied = shutil.copytree(PLACE, tmp_path / "prometheus")
    shutil.copy(copied / "targets" / "trackside.example.json", copied / "targets" / "trackside-hall.json")
    return copied


@pytest.mark.parametrize("name", FILES)
def test_each_tool_accepts_its_file(place: Path, name: str) -> None:
    command = FILES[name]
    file = f"-promscrape.config={name}" if command[0] == "victoria-metrics" else name
    done = subprocess.run([*command, file], cwd=place, capture_output=True, text=True, check=False, timeout=DEADLINE)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stdout + done.stderr


def test_vmagent_accepts_what_victoriametrics_accepts(place: Path) -> None:
    flags = ["-promscrape.config=victoriametrics.yml", "-remoteWrite.url=http://127.0.0.1:8428/api/v1/write", "-dryRun"]
    done = subprocess.run(["vmagent", *flags], cwd=place, capture_output=True, text=True, check=False, timeout=DEADLINE)
    assert done.returncode == 0, done.stderr


def test_vmalert_accepts_the_rules_except_for_what_the_page_states(tmp_path: Path) -> None:
    rules = (PLACE / "trackside.rules.yml").read_text(encoding="utf-8")
    for text, status in ((rules, "keep_firing_for"), (re.sub(".*keep_firing_for.*\n", "", rules), "")):
        (tmp_path / "rules.yml").write_text(text)
        vmalert = ["vmalert", f"-rule={tmp_path / 'rules.yml'}", "-dryRun", "-loggerLevel=ERROR"]
        done = subprocess.run(vmalert, capture_output=True, text=True, check=False, timeout=DEADLINE)
        assert (done.returncode != 0, status in done.stderr) == (bool(status), True)


def read(name: str) -> dict[str, Any]:
    written: dict[str, Any] = yaml.safe_load((PLACE / name).read_text(encoding="utf-8"))
    return written


def test_every_configuration_is_tested() -> None:
    others = {
        path.name for path in PLACE.glob("*.yml") if "scrape_configs" in read(path.name) or "storage" in read(path.name)
    }
    assert others == set(FILES)


def test_the_limits_are_the_same_everywhere_but_where_victoriametrics_has_none() -> None:
    jobs = {name: job for name in FILES for job in read(name).get("scrape_configs", ())}
    limits = {name: {key: job[key] for key in job if key.endswith("_limit")} for name, job in jobs.items()}
    of_prometheus = limits.pop("prometheus.yml")
    assert limits.pop("victoriametrics.yml") == {"sample_limit": of_prometheus["sample_limit"]}
    assert list(limits.values()) == [of_prometheus] * 2


def test_no_family_comes_near_the_limit_of_labels() -> None:
    [job] = read("prometheus.yml")["scrape_configs"]
    assert max(len(metric.labels) for metric in documented()) + 10 < job["label_limit"]  # 10 for targets and clusters


def test_machines_are_named_in_the_same_way_everywhere() -> None:
    found = [
        read(name)["scrape_configs"][0] for name in FILES if "file" in name or "agent" in name or "victoria" in name
    ]
    keys = ("file_sd_configs", "relabel_configs", "metric_relabel_configs")
    assert [[job[key] for key in keys] for job in found] == [[found[0][key] for key in keys]] * 3


def test_a_machine_has_the_name_in_its_file_and_else_that_of_its_address(place: Path) -> None:
    """The file of deploy/slurm/file_sd.py has names, which differ from the addresses."""
    named = {"targets": ["192.0.2.1:21790"], "labels": {"instance": "gpu-s1", "node_state": "drained"}}
    (place / "targets" / "trackside-slurm.json").write_text(json.dumps([named]))
    asked = ["promtool", "check", "service-discovery", "prometheus-file-sd.yml", "trackside", "--timeout=1s"]
    done = subprocess.run(asked, cwd=place, capture_output=True, text=True, check=True, timeout=DEADLINE)
    found = {one["labels"]["__address__"]: one["labels"]["instance"] for one in json.loads(done.stdout)}
    assert found.pop("192.0.2.1:21790") == "gpu-s1"
    assert found == {address: address.partition(":")[0] for address in found} != {}


def test_the_example_of_targets_has_ports_and_a_label_for_each_machine() -> None:
    groups = json.loads((PLACE / "targets" / "trackside.example.json").read_text(encoding="utf-8"))
    assert all(target.endswith(":21790") for group in groups for target in group["targets"])
    assert {label for group in groups for label in group["labels"]} == {"rack"}
