"""Each way in which a training can end, with the real daemon: its state on /metrics and in the history."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from process_endings import ENDS, memory_cgroup, script
from processes import DEADLINE, Daemon, eventually, lasting_daemon

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from end_to_end.conftest import Process

STATES = ("starting", "running", "stalled", "finished", "stopped", "failed", "lost")


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    """One daemon for the whole file; each end is a separate run."""
    with lasting_daemon() as one:
        yield one


@pytest.fixture
def cgroup() -> Iterator[Path]:
    """A cgroup with little memory."""
    with ExitStack() as stack:
        try:
            joins = stack.enter_context(memory_cgroup(f"trackside-test-{os.getpid()}"))
        except OSError as error:  # only root can, and in most containers nobody
            pytest.skip(f"a process's memory cannot be limited here: {error}")
        yield joins


@pytest.fixture
def start(daemon: Daemon, start_training: Callable[..., Process]) -> Callable[..., Process]:
    """A function that starts a training that ends in one of the ways when it reads a line.

    It returns once the run is on the page.
    """

    def begin(kind: str, **environ: str) -> Process:
        # A forked process has imported the client, and registered its exit handler, before the script registers its own.
        fresh = ("env",) if ENDS[kind].late != "None" else ()
        code = script(ENDS[kind])
        training = start_training(daemon, "-c", code, launcher=fresh, TRACKSIDE_RUN_NAME=kind, **environ)
        assert training.stdout is not None
        assert training.stdout.readline() == "trains\n"
        eventually(lambda: state(daemon, kind) == "running")
        return training

    return begin


def state(daemon: Daemon, run: str) -> str | None:
    """Return the state that /metrics shows of a run."""
    page = daemon.series()
    return next((one for one in STATES if page.get(f'trackside_training_state{{run="{run}",state="{one}"}}')), None)


def ended_as(daemon: Daemon, run: str) -> str | None:
    """Return the state that /metrics shows of a run, or None while it is running."""
    shown = state(daemon, run)
    return None if shown == "running" else shown


def description(daemon: Daemon, run: str) -> dict[str, Any]:
    """Return the description of a run in the history, by name."""
    (found,) = eventually(lambda: [one for one in daemon.api("runs").json()["runs"] if one["name"] == run])
    return daemon.api(f"runs/{found['id']}").json()  # type: ignore[no-any-return]  # JSON


def ends(daemon: Daemon, run: str) -> list[dict[str, Any]]:
    """Return the history's events of the ends of a run's ranks, oldest first."""
    events = daemon.api(f"events?run={description(daemon, run)['id']}").json()["events"]
    return [one["fields"] for one in events if one["kind"] == "rank_ended"]


def expect(daemon: Daemon, kind: str) -> None:
    """Check that the page shows the right state, and the history the right state and cause."""
    end = ENDS[kind]
    assert eventually(lambda: ended_as(daemon, kind)) == end.state, "no other end is reported first"
    eventually(
        lambda: (description(daemon, kind)["state"], description(daemon, kind)["cause"]) == (end.state, end.cause)
    )
    assert ends(daemon, kind)[-1] == {"state": end.state, "cause": end.cause, **end.known}
    lines = eventually(lambda: [line for line in daemon.log if f"run {kind} rank 0" in line])
    assert len(lines) == 1, lines
    assert (f"{end.state}: {end.cause}" if end.cause else end.state) in lines[0]


@pytest.mark.parametrize("kind", sorted(ENDS.keys() - {"oom"}))
def test_a_training_that_ends_is_shown_with_its_state_and_its_cause(
    daemon: Daemon, start: Callable[..., Process], kind: str
) -> None:
    training = start(kind)
    training.communicate("end\n", timeout=DEADLINE)
    expect(daemon, kind)


def test_a_training_that_the_oom_killer_ends_is_shown_as_that(
    daemon: Daemon, start: Callable[..., Process], cgroup: Path
) -> None:
    training = start("oom", CGROUP=str(cgroup))
    training.communicate("end\n", timeout=DEADLINE)
    expect(daemon, "oom")
    # The kernel kills for tests in other processes, too, which this daemon may report of the machine.
    (alert,) = eventually(
        lambda: [
            one for one in daemon.api("alerts").json()["alerts"] if (one["alert"], one["name"]) == ("OomKilled", "oom")
        ]
    )
    assert alert["severity"] == "critical"


def test_a_zombie_process_is_shown_all_the_same(daemon: Daemon, start_training: Callable[..., Process]) -> None:
    """A launcher may be slow to wait for its ranks."""
    kind = "os-exit-3"
    training = start_training(daemon, "-c", script(ENDS[kind]), TRACKSIDE_RUN_NAME="zombie")
    eventually(lambda: state(daemon, "zombie") == "running")
    assert training.stdin is not None
    training.stdin.write("end\n")
    training.stdin.flush()
    eventually(lambda: state(daemon, "zombie") == "failed")
    assert training.returncode is None
    eventually(lambda: description(daemon, "zombie")["cause"] == "exit status 3")
