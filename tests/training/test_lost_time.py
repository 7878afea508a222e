"""The time that trains nothing: by phases, stalls and restarts, over attempts, and over daemons that are restarted."""

from __future__ import annotations

from math import inf, nan
from typing import TYPE_CHECKING, Any

import pytest
from histories import history
from session_records import batch_ingested, session_opened
from wire_messages import WALL, FakeSession, RunsHarness

from trackside.wire import Device
from trackside_daemon.diagnosis.accounts import read_run
from trackside_daemon.documents import text
from trackside_daemon.documents.run import document
from trackside_daemon.history import time_accounting
from trackside_daemon.history.read import reader
from trackside_daemon.model.records import (
    Account,
    AccountUpdated,
    EarlierAttempts,
    RunState,
)
from trackside_daemon.model.stall import Stall
from trackside_daemon.model.time_ledger import lost_in

if TYPE_CHECKING:
    from pathlib import Path


CAUSES = ("data", "checkpoint", "eval", "restart", "stall")


def lost(house: RunsHarness, rank: str = "0") -> dict[str, float]:
    """Return the lost seconds on the page, by cause, without zeros."""
    reported = {cause: house.get("lost_seconds_total", "train", rank, cause) for cause in CAUSES}
    return {cause: seconds for cause, seconds in reported.items() if isinstance(seconds, float) and seconds}


def stored_accounts(house: RunsHarness) -> dict[int, Account]:
    """Return the accounts that were last sent to the history, by rank."""
    return {one.rank: one.account for one in house.records if isinstance(one, AccountUpdated)}


ALL_STALLED = Stall("id-1", 0, stalled=True, restored=True)
"""All ranks are stalled, whenever they pushed last."""


def test_phases_are_grouped_by_what_the_time_is_lost_to() -> None:
    phases = {"data": 1.0, "forward": 9.0, "eval": 2.0, "validation": 3.0, "checkpoint": 4.0, "save": 5.0}
    assert lost_in(phases) == {"data": 1.0, "checkpoint": 9.0, "eval": 5.0}
    assert lost_in({"forward": 1.0}) == {}
    house, session = RunsHarness(), FakeSession()
    house.hello(session)
    house.push(session, {"loss": 1.0}, phases=phases)
    assert lost(house) == {"data": 1.0, "checkpoint": 9.0, "eval": 5.0}
    assert house.get("lost_seconds_total", "train", "0", "stall") == 0.0


def test_a_stall_is_counted_while_it_lasts_without_the_phases_that_are_counted_already() -> None:
    house, session = RunsHarness(), FakeSession()
    house.hello(session)
    house.push(session, {"loss": 1.0}, phases={"data": 1.0})
    house.wait(1)
    house.runs.accept_stalls([ALL_STALLED])
    house.wait(1)
    for _ in range(20):
        house.wait(1)
    house.push(session, {"loss": 1.0}, phases={"data": 6.0}, pushes=1)  # five of the seconds it has waited for data
    house.wait(1)
    house.runs.accept_stalls([Stall("id-1", 0)])
    house.push(session, {"loss": 1.0}, step=2)
    for _ in range(20):
        house.wait(1)
    assert lost(house) == {"data": 6.0, "stall": 21.0}
    assert stored_accounts(house)[0].stall == 21.0


def test_values_of_the_page_were_stored_before() -> None:
    house, session = RunsHarness(stalls=[ALL_STALLED]), FakeSession()
    house.hello(session)
    house.push(session, {"loss": 1.0})
    shown, reported = [], [0.0] * 10
    for _ in range(35):
        house.wait(1)
        shown.append(lost(house).get("stall", 0.0))
        reported.append(stored_accounts(house).get(0, Account()).stall)
        assert shown[-1] <= reported[-11]
    assert shown == sorted(shown)
    assert 0 < shown[-1] < 35


def test_all_accounts_of_an_attempt_that_is_given_up_for_the_next_are_stored() -> None:
    house, session, again = RunsHarness(stalls=[ALL_STALLED]), FakeSession(), FakeSession(attempt=1)
    house.hello(session)
    house.push(session, {"loss": 1.0}, device=Device(flops=1e15))
    for _ in range(6):
        house.wait(1)
    house.push(session, {"loss": 1.0}, step=2, device=Device(flops=2e15))
    house.hello(again)
    assert lost(house) == {"stall": 5.0}
    assert stored_accounts(house)[0] == Account(stall=5.0, caught=True, flops=2e15)


def crashed(house: RunsHarness, *, steps: int = 5) -> FakeSession:
    """Return the session of a run that makes some steps and dies at 100 s."""
    session = house.greet()
    for step in range(1, steps + 1):
        house.push(session, {"loss": 1.0}, step=step, phases={"data": 2.0})
    house.after = 100.0
    house.bye(session, "failed")
    house.wait(1)
    return session


def test_a_restart_lasts_from_the_end_to_the_first_step_beyond_and_phases_are_not_counted_twice() -> None:
    house = RunsHarness()
    crashed(house)
    house.after = 130.0
    again = house.greet()
    for after, step in ((140, 3), (150, 4), (160, 5)):
        house.after = after
        house.push(again, {"loss": 1.0}, step=step, phases={"data": 6.0})
        house.wait(0)
    house.after = 170.0
    house.push(again, {"loss": 1.0}, step=6, phases={"data": 6.0})
    house.after = 175.0
    house.wait(0)
    house.push(again, {"loss": 1.0}, step=7, phases={"data": 7.0})
    for _ in range(12):
        house.wait(1)
    assert lost(house) == {"data": 9.0, "restart": 170.0 - 100.0 - 6.0}
    assert stored_accounts(house)[0] == Account(restart=64.0, caught=True)


def test_an_attempt_that_never_gets_beyond_is_lost_wholly_and_the_next_one_goes_on_from_there() -> None:
    house = RunsHarness()
    crashed(house)
    house.after = 130.0
    second = house.greet()
    house.push(second, {"loss": 1.0}, step=4)
    house.after = 150.0
    house.bye(second, "failed")
    house.after = 160.0
    third = house.greet()
    house.push(third, {"loss": 1.0}, step=5)
    house.after = 170.0
    house.push(third, {"loss": 1.0}, step=6)
    for _ in range(12):
        house.wait(1)
    assert lost(house) == {"data": 2.0, "restart": 50.0 + 20.0}


def test_a_run_without_steps_before_has_caught_up_with_its_first() -> None:
    house = RunsHarness()
    crashed(house, steps=0)
    again = FakeSession()
    house.after = 110.0
    house.hello(again)
    house.push(again, {"loss": 1.0}, step=1)
    for _ in range(12):
        house.wait(1)
    assert lost(house) == {"restart": 10.0}


@pytest.fixture
def records(tmp_path: Path) -> Path:
    return tmp_path / "history"


def test_a_restarted_daemon_continues_where_the_one_before_was(records: Path) -> None:
    first = RunsHarness()
    before = crashed(first)
    opened = [session_opened(before.id, before.hello(0.0), "train", 0, WALL)]
    with history(records) as file:
        file.put([*opened, *first.records])
        with file.database.reading() as connection:
            known = time_accounting.earlier_attempts(connection, "id-1", 1)
        assert (known.ended, known.lost) == (WALL + 100, {0: {}})
        file.put([AccountUpdated("id-1", 0, 0, Account(restart=3.0, stall=4.0, caught=True))])
        with file.database.reading() as connection:
            known = time_accounting.earlier_attempts(connection, "id-1", 1)
            now = time_accounting.earlier_attempts(connection, "id-1", 0)
    assert known.lost == {0: {"restart": 3.0, "stall": 4.0}}
    assert now == EarlierAttempts(kept={0: Account(restart=3.0, stall=4.0, caught=True)})
    house, session = RunsHarness(before=lambda *_: EarlierAttempts(known.lost, 9, known.ended)), FakeSession()
    house.after = 130.0
    house.hello(session)
    house.push(session, {"loss": 1.0}, step=10)
    for _ in range(12):
        house.wait(1)
    assert lost(house) == {"restart": 33.0, "stall": 4.0}
    again = RunsHarness(before=lambda *_: EarlierAttempts(known.lost, 9, known.ended, stored_accounts(house)))
    again.after = 150.0
    again.hello(session)
    assert lost(again) == {"restart": 33.0, "stall": 4.0}


def test_an_attempt_with_an_unobserved_end_has_ended_with_its_last_message(records: Path) -> None:
    session = FakeSession()
    with history(records) as file:
        file.put([session_opened(session.id, session.hello(0.0), "train", 0, WALL)])
        for number, step in enumerate((3, 7, 5), 1):
            body = session.pushes({"loss": 1.0}, step=step, after=10.0 * number, phases={"data": 2.0})
            file.put(
                [
                    batch_ingested(
                        session.id, number, body.blocks, body.clock.wall - body.clock.monotonic, body.totals.phases
                    )
                ]
            )
        with file.database.reading() as connection:
            known = time_accounting.earlier_attempts(connection, "id-1", 1)
        assert known == EarlierAttempts({0: {"data": 2.0}}, 7, WALL + 30.0)
        file.put([RunState("id-1", 0, "lost", "", WALL + 40.0)])
        file.wait_until_packed()
        with file.database.reading() as connection:
            assert time_accounting.earlier_attempts(connection, "id-1", 1) == EarlierAttempts(
                known.lost, 7, WALL + 40.0
            )
            assert time_accounting.earlier_attempts(connection, "id-1", 0) == EarlierAttempts(kept={0: Account()})


def test_work_and_peak_are_stored_for_later_questions() -> None:
    house, session = RunsHarness(peak=lambda run, rank: 1e15 if (run, rank) == ("train", 0) else None), FakeSession()
    house.hello(session)
    house.push(session, {"loss": 1.0}, device=Device(flops=4e16))
    house.wait(1)
    assert stored_accounts(house)[0] == Account(caught=True, flops=4e16, peak=1e15)
    house.push(session, {"loss": 1.0}, step=2, device=Device(flops=8e16, peak_flops=3e15))
    house.bye(session)
    house.wait(1)
    assert stored_accounts(house)[0] == Account(
        caught=True, flops=8e16, peak=3e15
    )  # its own word counts, up to its end


def test_numbers_that_make_no_sense_leave_the_stored_ones_readable(records: Path) -> None:
    house, session = RunsHarness(stalls=[ALL_STALLED], peak=lambda *_: inf), FakeSession()
    house.hello(session)
    house.push(session, {"loss": 1.0}, phases={"data": inf, "eval": nan}, device=Device(flops=inf))
    for _ in range(12):
        house.wait(1)
    with history(records) as file:
        file.put([session_opened(session.id, session.hello(0.0), "train", 0, WALL), *house.records])
        with file.database.reading() as connection:
            assert time_accounting.earlier_attempts(connection, "id-1", 0) == EarlierAttempts(
                kept={0: Account(stall=10.0, caught=True)}
            )
            assert "mfu" not in reader.run(connection, "id-1")


def test_mfu_is_of_all_ranks_and_attempts() -> None:
    attempts: list[dict[str, Any]] = [
        {"attempt": 0, "started": 0.0, "ended": 60.0},
        {"attempt": 1, "started": 80.0, "ended": None},
    ]
    work = Account(flops=3e15, peak=1e14)
    ranks = [time_accounting.RankTime(attempt, rank, {}, work) for attempt in (0, 1) for rank in (0, 1)]
    assert time_accounting.mfu(ranks[:2], attempts, now=100.0) == pytest.approx(2 * 3e15 / (2 * 60 * 1e14))
    assert time_accounting.mfu(ranks, attempts, now=100.0) == pytest.approx(4 * 3e15 / (2 * 80 * 1e14))
    assert time_accounting.mfu([], attempts, now=100.0) is None
    assert time_accounting.mfu([time_accounting.RankTime(0, 0, {}, Account())], attempts, now=100.0) is None


def test_the_history_lists_them_by_attempt_and_of_the_run(records: Path) -> None:
    house = RunsHarness()
    session = crashed(house)
    with history(records) as file:
        account = Account(stall=10.0, flops=1e15, peak=1e14)
        file.put(
            [
                session_opened(session.id, session.hello(0.0), "train", 0, WALL),
                *house.records,
                AccountUpdated("id-1", 0, 0, account),
            ]
        )
        with file.database.reading() as connection:
            run = read_run(connection, "id-1")
    lost = run["attempt_list"][0]["lost"]["0"]
    assert lost == {"start": pytest.approx(90.0), "stall": 10.0}
    assert (run["goodput"], run["lost"], run["mfu"]) == (0.0, {"start": 0.9, "stall": 0.1}, pytest.approx(0.1))
    lines = list(text.write(document({**run, "alerts": []}, [], None, WALL + 200)))
    assert {"goodput   0.0 % (start-up 90.0 %, stalled 10.0 %)", "MFU       10.0 %"} <= set(lines)
