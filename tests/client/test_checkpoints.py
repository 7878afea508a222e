"""Checkpoints: a phase and an event of the same step count as one."""

from __future__ import annotations

import json
from typing import Any

import pytest
from client.messages import CLOCK, a_session, batches, later

from trackside.totals.phases import PhaseMark
from trackside.transport.session import Session
from trackside.wire import DURATION_BUCKETS, CheckpointTotals, Identity, TrainingEvent

SECOND = 1_000_000_000


def trained(*answered: tuple[float, Any], session: Session | None = None) -> Session:
    """Return a session with rows at so many seconds after `CLOCK`.

    Each row is ``+phase``, ``-phase``, ``!phase``, a step, or the fields of an event.
    """
    session = session or a_session()
    for second, what in answered:
        moment = CLOCK.monotonic + round(second * SECOND)
        if isinstance(what, int):
            session.rows.append((moment, what, {"loss": 1.0}))
        elif isinstance(what, dict):
            session.rows.append((moment, TrainingEvent("checkpoint", moment, None, json.dumps(what)), None))
        else:
            mark = PhaseMark(enters=what[0] == "+", phase=what[1:], failed=what[0] == "!")
            session.rows.append((moment, mark, None))
    session.drain(later(100))
    return session


def saves(session: Session) -> CheckpointTotals:
    assert session.totals.saves is not None
    return session.totals.saves


def events(session: Session) -> list[TrainingEvent]:
    return [event for batch in batches(session) for event in batch.events]


@pytest.mark.parametrize(
    ("answered", "count", "durations"),
    [
        (((1, "+checkpoint"), (3, "-checkpoint")), 1, [2.0]),
        (((1, "+save"), (3, "-save"), (4, {"bytes": 7})), 1, [2.0]),
        (((1, "+checkpoint"), (2, {"seconds": 9.0}), (3, "-checkpoint")), 1, [2.0]),
        (((1, {"seconds": 0.25}),), 1, [0.25]),
        (((1, {"seconds": 0.25}), (2, "+save"), (4, "-save")), 1, [0.25]),
        (((1, {"path": "x"}),), 1, []),
        (((1, {"path": "x"}), (2, "+save"), (4, "-save")), 1, [2.0]),
        (((1, {}), (2, {})), 2, []),
        (((1, {"auto": True}), (2, {"auto": True})), 1, []),
        (((1, "+save"), (2, {"auto": True}), (3, "-save")), 1, [2.0]),
        (((1, {"auto": True}), (2, {"seconds": 0.25}), (3, {})), 2, [0.25]),
        (((1, {"auto": True}), (2, 6), (3, {"auto": True})), 2, []),
        (((1, "+checkpoint"), (2, "+save"), (3, "-save"), (4, "-checkpoint")), 1, [3.0]),
        (((1, "+save"), (2, "-save"), (3, 6), (4, "+save"), (6, "-save")), 2, [1.0, 2.0]),
        (((1, "+save"), (2, "!save"), (3, "+save"), (5, "-save")), 1, [2.0]),
        (((1, {"seconds": "soon", "bytes": -1}), (2, {"seconds": float("nan"), "bytes": "big"})), 2, []),
        (((1, {"seconds": 10**400, "bytes": 10**400}), (2, {"seconds": float("inf"), "bytes": True})), 2, []),
    ],
)
def test_checkpoints_are_counted_once_each_with_what_they_took(
    answered: tuple[tuple[float, Any], ...], count: int, durations: list[float]
) -> None:
    reported = saves(trained((0, 5), *answered))
    assert reported.count == count
    counted = 0 if reported.duration is None else sum(reported.duration.counts)
    assert counted == len(durations)
    assert (0.0 if reported.duration is None else reported.duration.sum) == sum(durations)


def test_a_checkpoint_that_failed_is_none() -> None:
    session = trained((0, 5), (1, "+save"), (2, "!save"), (3, 6))
    assert session.totals.saves is None
    assert not events(session)


def test_size_and_moment_are_those_of_the_last() -> None:
    session = trained((0, 5), (1, {"bytes": 7}), (2, 6), (3, {"bytes": 8.0}), (4, 7), (5, "+save"), (6, "-save"))
    assert saves(session).bytes == 8
    assert saves(session).at == CLOCK.wall / 1e9 - 94  # it is told 94 s later
    [batch] = batches(session)
    assert batch.totals.saves == saves(session)
    assert len(saves(session).duration.counts) == len(DURATION_BUCKETS) + 1  # type: ignore[union-attr]


def test_a_phase_alone_sends_an_event_with_its_step() -> None:
    session = trained((0, 5), (1, "+checkpoint"), (3, "-checkpoint"), (4, 5))
    assert not events(session)  # the training may tell of it yet
    trained((5, 6), session=session)
    [event] = events(session)
    assert (event.kind, event.step, event.time) == ("checkpoint", 5, CLOCK.monotonic + 3 * SECOND)
    assert json.loads(event.fields) == {"seconds": 2.0}
    assert saves(session).count == 1


def test_what_the_training_reports_itself_is_not_reported_again() -> None:
    session = trained((0, 5), (1, "+checkpoint"), (3, "-checkpoint"), (4, {"path": "a"}), (5, 6))
    assert [event.fields for event in events(session)] == ['{"path": "a"}']


def test_the_last_one_is_sent_before_the_end_and_by_one_rank_of_a_machine() -> None:
    answered = ((0, 5), (1, "+checkpoint"), (3, "-checkpoint"))
    for local_rank in (0, 1):
        session = Session(Identity("run", "name", rank=8 + local_rank, local_rank=local_rank))
        trained(*answered, session=session)
        session.end(later(101), "finished", "", provisional=False)
        assert [event.step for event in events(session)] == [5] * (1 - local_rank)
        assert saves(session).count == 1
