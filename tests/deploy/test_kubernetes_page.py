"""docs/kubernetes.md: a cluster accepts what it applies, and its kustomizations are valid."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import processes
import pytest
import yaml
from deploy.kustomize import build, built, containers, has_kubectl, pod
from processes import DEADLINE, ROOT, command

PAGE = (ROOT / "docs" / "kubernetes.md").read_text(encoding="utf-8")
EXAMPLES = ROOT / "deploy" / "kubernetes" / "examples"
ANNOTATIONS = 262_144
"""Bytes that all annotations of an object may have together."""

WRITTEN = [
    *ROOT.glob("*.md"),
    *(path for name in ("docs", "deploy", "grafana") for path in (ROOT / name).rglob("*") if path.is_file()),
]
APPLIED = [
    pytest.param(shlex.split(line), id=f"{path.relative_to(ROOT)}: {line}")
    for path in WRITTEN
    if path.suffix in {".md", ".yaml", ".yml"}
    for line in re.findall(r"kubectl apply .*-k \S+", path.read_text(encoding="utf-8"))
]
SHOWN = [block for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL) if "patches:" in block]


@pytest.mark.parametrize("words", APPLIED)
def test_manifests_too_long_for_an_annotation_are_applied_by_the_server(words: list[str]) -> None:
    made = build(ROOT / words[words.index("-k") + 1])
    long = [one["metadata"]["name"] for one in made if len(json.dumps(one, separators=(",", ":"))) > ANNOTATIONS]
    assert not long or "--server-side" in words, long


def test_the_page_applies_each_example_that_can_be_applied() -> None:
    applied = {Path(line.split()[-1]).name for line in re.findall("^kubectl apply .*", PAGE, re.MULTILINE)}
    assert applied == {path.name for path in EXAMPLES.iterdir()} - {"training"}


@pytest.mark.parametrize("directory", sorted(EXAMPLES.iterdir()), ids=lambda one: one.name)
def test_every_image_of_an_example_comes_from_a_registry(directory: Path) -> None:
    images = [container["image"] for one in build(directory) for container in containers(one)]
    assert images
    assert all(image.startswith("registry.example.com/") for image in images)


def test_a_daemon_that_rewrites_its_history_has_as_long_as_under_systemd() -> None:
    unit = (ROOT / "deploy/systemd/trackside.service").read_text(encoding="utf-8")
    (minutes,) = re.findall(r"^TimeoutStartSec=(\d+)min$", unit, re.MULTILINE)
    (daemon,) = (one for one in build(EXAMPLES / "cluster") if one["kind"] == "DaemonSet")
    probe = pod(daemon)["containers"][0]["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] == 60 * int(minutes)


@pytest.fixture
def repository(tmp_path: Path) -> str:
    """The URL of a repository that contains the manifests, tagged with this version."""
    place = tmp_path / "repository"
    for name in ("deploy/kubernetes", "grafana/dashboards"):
        shutil.copytree(ROOT / name, place / name)
    (version,) = set(re.findall(r"\?ref=(\S+)", PAGE))
    identity = ["-c", "user.name=any", "-c", "user.email=any@example.com", "-c", "commit.gpgsign=false"]
    for words in (
        ["init", "--quiet"],
        ["add", "--all"],
        [*identity, "commit", "--quiet", "-m", "any"],
        ["tag", version],
    ):
        subprocess.run(["git", *words], cwd=place, check=True, timeout=DEADLINE)
    return f"file://{place}"


@pytest.fixture
def own(tmp_path: Path, repository: str) -> list[dict[str, Any]]:
    """Return the manifests of a kustomization with everything that the page shows."""
    wanted: dict[str, Any] = {}
    for block in SHOWN:
        for key, value in yaml.safe_load(block.replace("https://REPOSITORY", repository)).items():
            wanted.setdefault(key, []).extend(value)
    directory = tmp_path / "own"
    directory.mkdir()
    (directory / "kustomization.yaml").write_text(json.dumps({"kind": "Kustomization", **wanted}))
    return built(directory)


@pytest.mark.skipif(not has_kubectl(), reason="no kubectl of 1.27 or later")
def test_a_kustomization_elsewhere_uses_the_example_and_changes_what_the_page_states(own: list[dict[str, Any]]) -> None:
    (daemon,) = (one for one in own if one["kind"] == "DaemonSet")
    assert {one["image"].rpartition(":")[0] for one in containers(daemon)} == {"registry.lab/trackside"}
    assert {one["metadata"]["labels"].get("release") for one in own} == {"monitoring", None}


def test_probes_over_tls_ask_for_the_same_pages() -> None:
    (before,) = (one for one in build(EXAMPLES.parent / "base") if one["kind"] == "DaemonSet")
    (after,) = (one for one in build(EXAMPLES / "cluster") if one["kind"] == "DaemonSet")
    old, new = (pod(one)["containers"][0] for one in (before, after))
    for name in ("startupProbe", "livenessProbe", "readinessProbe"):
        old[name]["httpGet"]["scheme"] = "HTTPS"
        assert new[name] == old[name]


def test_rules_link_to_the_address_that_they_are_given() -> None:
    (line,) = re.findall(r"^trackside (rules .*--runbook-url.*)$", PAGE, re.MULTILINE)
    words = shlex.split(line)
    done = processes.run(command(*words), check=True)
    links = re.findall(r"runbook_url: (\S+)#", done.stdout)
    assert set(links) == {words[-1]}
