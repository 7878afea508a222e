"""The limit of open files of a process, as the kernel reports it."""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from processes import Daemon, clean_environ

from trackside_daemon.linux.process_limits import MOST_FILES, raise_limit

SCRIPT = """
import resource
from trackside_daemon.linux.process_limits import raise_limit
resource.setrlimit(resource.RLIMIT_NOFILE, ({}, {}))
raise_limit()
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize(("soft", "hard", "expected"), [(256, 1024, "1024 1024"), (1024, 1024, "1024 1024")])
def test_the_limit_is_raised_to_the_hard_one(soft: int, hard: int, expected: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(soft, hard)],
        env=clean_environ(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == expected


@pytest.mark.parametrize(
    ("limits", "raised"),
    [
        ((1024, 1 << 30), (MOST_FILES, 1 << 30)),
        ((1024, resource.RLIM_INFINITY), (MOST_FILES, resource.RLIM_INFINITY)),
        ((MOST_FILES + 1, 1 << 30), None),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), None),
    ],
)
def test_it_is_never_raised_too_high_nor_lowered(
    monkeypatch: pytest.MonkeyPatch, limits: tuple[int, int], raised: tuple[int, int] | None
) -> None:
    reported: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda _, new: reported.append(new))
    raise_limit()
    assert reported == ([raised] if raised else [])


def test_a_process_that_may_not_raise_it_goes_on_with_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def refuse(_: int, limits: tuple[int, int]) -> None:
        asked.append(limits)
        raise PermissionError

    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 1024))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    raise_limit()
    assert asked == [(1024, 1024)]


def test_the_daemon_may_open_as_many_as_its_hard_limit_allows() -> None:
    launcher = ["sh", "-c", 'ulimit -Sn 300; ulimit -Hn 3000; exec "$@"', "sh"]
    with tempfile.TemporaryDirectory(prefix="ts-", dir="/tmp") as directory:
        daemon = Daemon(Path(directory), launcher=launcher)
        limits = Path(f"/proc/{daemon.process.pid}/limits").read_text()
        daemon.stop()
    (line,) = (line for line in limits.splitlines() if line.startswith("Max open files"))
    assert line.split()[3:5] == ["3000", "3000"]
