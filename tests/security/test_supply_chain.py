"""The supply chain: limits of versions, lock files with hashes, and workflows that only run pinned actions."""

from __future__ import annotations

import asyncio.sslproto
import http.client
import re
import sys
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import pytest
import uvicorn
import yaml
from end_to_end import dockerfile
from hatchling.metadata.core import ProjectMetadata
from hatchling.plugin.manager import PluginManager
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from processes import ROOT
from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

LOCKS = {
    "deploy/requirements.txt": ["daemon", "passwords", "top"],
    "tests/requirements.txt": ["dev"],
    "deploy/build-requirements.txt": [],
    ".github/sbom-requirements.txt": [],
}
"""The lock files, and the extras of which each has all requirements."""

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def declared(*extras: str) -> Iterator[Requirement]:
    """Yield the requirements of the project with some extras, those of their extras included, for this Python."""
    project = ProjectMetadata(str(ROOT), PluginManager()).core
    for text in [*project.dependencies, *(text for extra in extras for text in project.optional_dependencies[extra])]:
        one = Requirement(text)
        if one.name == project.name:
            yield from declared(*one.extras)
        elif one.marker is None or one.marker.evaluate():
            yield one


def blocks(name: str) -> list[str]:
    """Return the pins of a lock file, each with its hashes."""
    text = re.sub(r"^#.*\n", "", (ROOT / name).read_text(encoding="utf-8"), flags=re.MULTILINE)
    return text.replace("\\\n", "").splitlines()


def pins(name: str) -> dict[str, str]:
    """Return the version of each package that a lock file installs here."""
    found: dict[str, str] = {}
    for line in blocks(name):
        one = Requirement(line.partition("--hash")[0].strip())
        if one.marker is None or one.marker.evaluate():
            (found[canonicalize_name(one.name)],) = (each.version for each in one.specifier)
    return found


@pytest.mark.parametrize("name", LOCKS)
def test_each_line_of_a_lock_file_is_one_version_with_hashes(name: str) -> None:
    lines = blocks(name)
    assert lines
    wrong = [
        line for line in lines if not re.fullmatch(r"[\w.-]+==\S+( ; [^#]+?)?(\s+--hash=sha256:[0-9a-f]{64})+", line)
    ]
    assert wrong == []


@pytest.mark.parametrize("name", [name for name, extras in LOCKS.items() if extras])
def test_a_lock_file_has_a_permitted_version_of_each_requirement(name: str) -> None:
    found = pins(name)
    missing = [
        str(one)
        for one in declared(*LOCKS[name])
        if not one.specifier.contains(found.get(canonicalize_name(one.name), "0"), prereleases=True)
    ]
    assert missing == [], "run: make lock"


def test_the_library_with_used_private_parts_has_an_upper_limit() -> None:
    """The limit is the next minor version after the one that is tested, because uvicorn changes those parts in any."""
    (limit,) = (one.specifier for one in declared("daemon") if one.name == "uvicorn")
    tested = pins("tests/requirements.txt")["uvicorn"]
    major, minor = map(int, tested.split(".")[:2])
    assert limit.contains(tested)
    assert limit.contains(version("uvicorn"))
    assert not limit.contains(f"{major}.{minor + 1}.0")


def test_the_version_of_h11_that_smuggles_requests_is_excluded() -> None:
    (limit,) = (one.specifier for one in declared("daemon") if one.name == "h11")
    assert not limit.contains("0.14.0")  # CVE-2025-43859
    assert limit.contains(version("h11"))


def test_the_private_parts_that_the_code_uses_exist() -> None:
    """An attribute that does not exist would be set without an effect."""
    if sys.version_info >= (3, 11):  # 3.10 has no buffer of this size
        assert isinstance(asyncio.sslproto.SSLProtocol.max_size, int)  # type: ignore[attr-defined]
    assert all(hasattr(H11Protocol, name) for name in ("connection_made", "on_response_complete"))
    assert all(hasattr(uvicorn.Server, name) for name in ("startup", "main_loop"))
    assert "_create_connection" in vars(http.client.HTTPConnection("127.0.0.1"))


def test_the_image_installs_only_files_with_known_hashes() -> None:
    (steps,) = (one.rest for one in dockerfile.instructions() if one.name == "RUN" and "pip" in one.rest)
    installs = [one for one in steps.split("&&") if "pip install" in one]
    assert installs
    assert [one for one in installs if "--require-hashes" not in one and "--no-index" not in one] == []
    assert "--no-isolation" in steps, "an isolated build would download its tools without hashes"
    for name in re.findall(r"--requirement (\S+)", steps):
        assert f"!{name}" in dockerfile.IGNORED.read_text(encoding="utf-8").splitlines()
        assert name in LOCKS


@pytest.fixture(params=WORKFLOWS, ids=lambda path: path.name)
def workflow(request: pytest.FixtureRequest) -> dict[str, Any]:
    return dict(yaml.safe_load(request.param.read_text(encoding="utf-8")))


def steps(workflow: dict[str, Any]) -> list[dict[str, Any]]:
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


def test_a_workflow_runs_actions_by_their_hash_only(workflow: dict[str, Any]) -> None:
    used = [step["uses"] for step in steps(workflow) if "uses" in step]
    assert used
    assert [one for one in used if not re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40}", one)] == []


def test_a_workflow_has_no_permissions_but_those_of_its_jobs(workflow: dict[str, Any]) -> None:
    assert workflow["permissions"] == {}
    for job in workflow["jobs"].values():
        written = {name for name, level in job["permissions"].items() if level == "write"}
        checks_out = any("checkout" in step.get("uses", "") for step in job["steps"])
        # Only a job that runs no code of the repository may change it.
        assert written <= ({"id-token", "attestations"} if checks_out else {"contents"})
        if checks_out:
            assert job["permissions"]["contents"] == "read"


def test_a_workflow_installs_with_hashes_and_puts_no_text_of_others_into_its_scripts(workflow: dict[str, Any]) -> None:
    scripts = [step["run"] for step in steps(workflow) if "run" in step]
    for line in "\n".join(scripts).splitlines():
        assert "pip install" not in line or "--require-hashes" in line
        assert "${{" not in line
    for step in steps(workflow):
        if "checkout" in step.get("uses", ""):
            assert step["with"]["persist-credentials"] is False


def test_a_release_is_attested_with_its_list_of_components() -> None:
    release = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8"))
    actions = [step["uses"].partition("@")[0] for step in release["jobs"]["build"]["steps"] if "uses" in step]
    assert actions == [
        "actions/checkout",
        "actions/attest-build-provenance",
        "actions/attest-sbom",
        "actions/upload-artifact",
    ]
    text = "\n".join(step.get("run", "") for step in release["jobs"]["build"]["steps"])
    assert re.search(r"cyclonedx-py requirements .*deploy/requirements\.txt", text.replace("\\\n", ""))
