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


@pytest.mark.parametrize(
    ("ended", "expected"),
    [
        (exited(0), ("finished", "")),
        (exited(1), ("failed", "exit status 1")),
        (exited(255), ("failed", "exit status 255")),
        (exited(-signal.SIGTERM), ("stopped", "SIGTERM")),
        (exited(-signal.SIGINT), ("stopped", "SIGINT")),
        (exited(-signal.SIGKILL), ("failed", "SIGKILL")),
        (OOM, ("failed", "OOM killed")),
        (exited(-signal.SIGSEGV), ("failed", "SIGSEGV")),
        (exited(-signal.SIGABRT), ("failed", "SIGABRT")),
        (exited(-signal.SIGBUS), ("failed", "SIGBUS")),
        (exited(-signal.SIGHUP), ("failed", "SIGHUP")),
        (exited(-(signal.SIGRTMIN + 1)), ("failed", f"signal {signal.SIGRTMIN + 1}")),
        (Exit(0, oom=True), ("finished", "")),
        (Exit(1, oom=True), ("failed", "exit status 1")),
        (Exit(-signal.SIGTERM, oom=True), ("stopped", "SIGTERM")),
        (exited(None), ("lost", "unknown")),
        (Exit(None, oom=True), ("lost", "unknown")),
        (None, ("lost", "unknown")),
    ],
)
def test_a_process_that_reports_nothing_is_judged_by_the_exit(ended: Exit | None, expected: tuple[str, str]) -> None:
    assert verdict(None, ended) == expected


@pytest.mark.parametrize(
    ("ended", "expected"),
    [
        (None, ("finished", "")),
        (exited(None), ("finished", "")),
        (exited(0), ("finished", "")),
        (exited(3), ("failed", "exit status 3")),
        (exited(-signal.SIGTERM), ("finished", "")),
        (exited(-signal.SIGKILL), ("finished", "")),
        (exited(-signal.SIGSEGV), ("failed", "SIGSEGV")),
        (exited(-signal.SIGABRT), ("failed", "SIGABRT")),
        (OOM, ("finished", "")),
    ],
)
def test_a_good_end_that_atexit_reports_holds_unless_the_process_then_exits_badly_or_crashes(
    ended: Exit | None, expected: tuple[str, str]
) -> None:
    assert verdict(bye("finished"), ended) == expected


@pytest.mark.parametrize(
    ("ended", "expected"),
    [
        (None, ("failed", "exit status 1: no data")),
        (exited(None), ("failed", "exit status 1: no data")),
        (exited(0), ("finished", "")),
        (exited(1), ("failed", "exit status 1: no data")),
        (exited(11), ("failed", "exit status 11")),
        (exited(-signal.SIGTERM), ("failed", "exit status 1: no data")),
        (exited(-signal.SIGSEGV), ("failed", "SIGSEGV")),
    ],
)
def test_what_sys_exit_was_called_with_counts_unless_the_process_is_known_to_have_ended_otherwise(
    ended: Exit | None, expected: tuple[str, str]
) -> None:
    assert verdict(replace(bye("finished"), requested="exit status 1: no data"), ended) == expected


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
