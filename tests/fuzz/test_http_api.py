"""The API answers requests of any kind with the statuses and media types of its OpenAPI document, and never fails."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING

from fuzz.conftest import SECONDS
from processes import DEADLINE, clean_environ, eventually, require

import trackside

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pytest
    from processes import Daemon

require("schemathesis")

# /stream has no end; tests/web/test_stream.py has its answers.
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "allow_header_conformance",
)
# No valid request is refused, and no invalid one taken. No schema has the content of a file, the options of each kind of
# capture, and that a message which is none gets an answer; with another token, all is refused.
VALIDITY = ("positive_data_acceptance", "negative_data_rejection")
BEYOND_SCHEMAS = [
    f"--exclude-operation-id={name}" for name in ("import_run", "begin_capture", "send_message", "rotate_token")
]
OPTIONS = ("--exclude-path=/stream", "--suppress-health-check=all", "--warnings=off", "--no-color")
SHORT = ("--phases=fuzzing", "--max-examples=1", "--generation-deterministic")
SOAK = ("--phases=coverage,fuzzing", "--max-examples=100", "--generation-database=none", "--continue-on-failure")

# Otherwise hardly any request is about something that exists.
EXISTING = """\
[parameters]
"path.id" = "a"
"query.run" = "a"
"query.key" = "loss"
"""


def requests(daemon: Daemon, directory: Path, *options: str, checks: Sequence[str] = CHECKS) -> int:
    """Send requests for some time; return their number."""
    token = (daemon.directory / "push.token").read_text().strip()
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{daemon.url}/api/v1/openapi.json"]
    done = subprocess.run(
        [*command, "--header", f"Authorization: Bearer {token}", f"--checks={','.join(checks)}", *OPTIONS, *options],
        cwd=directory,
        env=clean_environ(),
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS + DEADLINE,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert daemon.get("/-/healthy").status_code == 200
    wrong = [line for line in daemon.log if "level=error" in line or "Traceback" in line]
    assert [line for line in wrong if "this is a test: an alert of severity critical" not in line] == []
    return int(re.findall(r"(\d+) generated", done.stdout)[-1])


def test_every_answer_is_documented(
    daemon: Daemon, request: pytest.FixtureRequest, tmp_path: Path, soaked: list[tuple[str, int, float]]
) -> None:
    soak = request.config.getoption("--soak")
    limits = (*SOAK, f"--max-time={SECONDS // 2}") if soak else SHORT
    with trackside.init("a", id="a", endpoint=daemon.endpoint) as run:
        run.push(loss=0.5)
        eventually(lambda: daemon.api("runs/a").status_code == 200)
        number = requests(daemon, tmp_path, *limits) if soak else 0
        (tmp_path / "schemathesis.toml").write_text(EXISTING)
        number += requests(daemon, tmp_path, *limits)
        number += requests(daemon, tmp_path, *limits, *BEYOND_SCHEMAS, checks=VALIDITY) if soak else 0
    if soak:
        soaked.append((request.node.name, number, SECONDS))
