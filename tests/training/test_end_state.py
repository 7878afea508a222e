"""End of a session, from its bye and its process's exit."""

from __future__ import annotations

import signal

import pytest
from msgspec.structs import replace
from wire_messages import FakeSession

from trackside.wire import Bye
from trackside_daemon.training.end_state import Exit, verdict

OOM = Exit(-signal.SIGKILL, oom=True)


def exited(code: int | None) -> Exit:
    return Exit(code)


def bye(status: str, cause: str = "", *, provisional: bool = True) -> Bye:
    reported = FakeSession().bye(status)
    return Bye(reported.clock, reported.totals, status, cause, provisional)


SILENT = None
GOOD = bye("finished")  # as atexit reports it
ASKED = replace(GOOD, requested="exit status 1: no data")


@pytest.mark.parametrize(
    ("reported", "ended", "expected"),
    [
        # A process that reports nothing is judged by its exit.
        (SILENT, exited(0), ("finished", "")),
        (SILENT, exited(1), ("failed", "exit status 1")),
        (SILENT, exited(255), ("failed", "exit status 255")),
        (SILENT, exited(-signal.SIGTERM), ("stopped", "SIGTERM")),
        (SILENT, exited(-signal.SIGINT), ("stopped", "SIGINT")),
        (SILENT, exited(-signal.SIGKILL), ("failed", "SIGKILL")),
        (SILENT, OOM, ("failed", "OOM killed")),
        (SILENT, exited(-signal.SIGSEGV), ("failed", "SIGSEGV")),
        (SILENT, exited(-signal.SIGHUP), ("failed", "SIGHUP")),
        (SILENT, exited(-(signal.SIGRTMIN + 1)), ("failed", f"signal {signal.SIGRTMIN + 1}")),
        (SILENT, Exit(0, oom=True), ("finished", "")),
        (SILENT, Exit(1, oom=True), ("failed", "exit status 1")),
        (SILENT, Exit(-signal.SIGTERM, oom=True), ("stopped", "SIGTERM")),
        (SILENT, exited(None), ("lost", "unknown")),
        (SILENT, Exit(None, oom=True), ("lost", "unknown")),
        (SILENT, None, ("lost", "unknown")),
        # A good end that atexit reports holds, unless the process then exits badly or crashes.
        (GOOD, None, ("finished", "")),
        (GOOD, exited(None), ("finished", "")),
        (GOOD, exited(0), ("finished", "")),
        (GOOD, exited(3), ("failed", "exit status 3")),
        (GOOD, exited(-signal.SIGTERM), ("finished", "")),
        (GOOD, exited(-signal.SIGKILL), ("finished", "")),
        (GOOD, exited(-signal.SIGSEGV), ("failed", "SIGSEGV")),
        (GOOD, exited(-signal.SIGABRT), ("failed", "SIGABRT")),
        (GOOD, OOM, ("finished", "")),
        # What sys.exit was called with counts, unless the process is known to have ended otherwise.
        (ASKED, None, ("failed", "exit status 1: no data")),
        (ASKED, exited(None), ("failed", "exit status 1: no data")),
        (ASKED, exited(0), ("finished", "")),
        (ASKED, exited(1), ("failed", "exit status 1: no data")),
        (ASKED, exited(11), ("failed", "exit status 11")),
        (ASKED, exited(-signal.SIGTERM), ("failed", "exit status 1: no data")),
        (ASKED, exited(-signal.SIGSEGV), ("failed", "SIGSEGV")),
    ],
)
def test_the_end_is_what_the_process_reports_and_how_it_exits(
    reported: Bye | None, ended: Exit | None, expected: tuple[str, str]
) -> None:
    assert verdict(reported, ended) == expected


@pytest.mark.parametrize(
    "ended", [None, exited(None), exited(0), exited(1), exited(-signal.SIGTERM), exited(-signal.SIGKILL), OOM]
)
def test_an_exception_that_was_seen_is_the_cause_whatever_follows(ended: Exit | None) -> None:
    assert verdict(bye("failed", "ValueError"), ended) == ("failed", "ValueError")
    assert verdict(bye("stopped", "KeyboardInterrupt"), ended) == ("stopped", "KeyboardInterrupt")


@pytest.mark.parametrize("status", ["finished", "stopped", "failed"])
@pytest.mark.parametrize("ended", [None, exited(None), exited(0), exited(3), exited(-signal.SIGKILL), OOM])
def test_an_end_that_the_training_reports_itself_stands(status: str, ended: Exit | None) -> None:
    assert verdict(bye(status, provisional=False), ended) == (status, "")


@pytest.mark.parametrize("status", ["running", "exploded", ""])
def test_a_bye_of_an_unheard_of_status_is_a_failure(status: str) -> None:
    assert verdict(bye(status, "X", provisional=False), None) == ("failed", "X")


@pytest.mark.parametrize(
    ("ended", "fields"),
    [
        (exited(None), {}),
        (exited(0), {"status": 0}),
        (exited(3), {"status": 3}),
        (OOM, {"signal": "SIGKILL"}),
        (exited(-64), {"signal": "SIGRTMAX"}),
    ],
)
def test_an_exit_is_reported_by_its_name(ended: Exit, fields: dict[str, int | str]) -> None:
    assert ended.fields() == fields
