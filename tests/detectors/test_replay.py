"""Replay: the findings by rank and attempt."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from trackside_daemon.detectors import rank_detectors
from trackside_daemon.detectors.base import Column, Context, Detection
from trackside_daemon.detectors.replay import AlertChange, PushedRow, Replay, Wanted

if TYPE_CHECKING:
    from collections.abc import Iterator


class High:
    """A detector of values over 1, critical over 10; the finding is over at 0."""

    alerts: tuple[str, ...] = ("High",)

    def evaluate(self, column: Column, context: Context) -> Iterator[Detection]:
        for place, value in enumerate(column.values):
            if value == 0:
                yield Detection("High", "info", place, "it is low", over=True)
            elif value > 1:
                yield Detection(
                    "High", "critical" if value > 10 else "info", place, f"{value:g} {context.phase}".strip()
                )


@pytest.fixture(autouse=True)
def high(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_detectors, "_DETECTORS", {role: (lambda _: High(),) for role in rank_detectors._DETECTORS})


def pushed(*values: float, key: str = "loss", of: int = 0, attempt: int = 0, phase: str = "") -> Iterator[PushedRow]:
    return (
        PushedRow(place, attempt, of, 10 * place, 1.5 * place, phase, {key: one}) for place, one in enumerate(values)
    )


def changes_of(rows: Iterator[PushedRow], wanted: Wanted = Wanted(), replay: Replay | None = None) -> list[AlertChange]:  # noqa: B008
    replay = replay or Replay(wanted)
    return [change for row in rows for change in replay.evaluate(row)]


def states(changes: list[AlertChange]) -> list[tuple[str, str, int]]:
    return [(one.state, one.severity, one.place) for one in changes]


def test_an_alert_fires_repeats_is_resolved_and_fires_anew() -> None:
    changes = changes_of(pushed(1, 2, 20, 1, 0, 0, 2))
    assert states(changes) == [
        ("firing", "info", 1),
        ("repeated", "critical", 2),
        ("resolved", "critical", 4),
        ("firing", "info", 6),
    ]
    assert changes[1].fields() == {
        "alert": "High",
        "state": "repeated",
        "severity": "critical",
        "key": "loss",
        "rank": 0,
        "index": 2,
        "step": 20,
        "message": "20",
    }


def test_what_is_not_severe_enough_does_not_fire_until_it_is() -> None:
    severe = Wanted(least="warning")
    assert states(changes_of(pushed(2, 0, 2, 20, 2, 0), severe)) == [
        ("firing", "critical", 3),
        ("resolved", "critical", 5),
    ]


def test_only_the_requested_alerts_are_reported() -> None:
    assert len(changes_of(pushed(2), Wanted(frozenset({"High"})))) == 1
    assert changes_of(pushed(2), Wanted(frozenset({"Low"}))) == []


def test_ranks_and_keys_are_apart() -> None:
    replay = Replay()
    assert changes_of(pushed(2), replay=replay)[0].state == "firing"
    assert changes_of(pushed(2, of=1), replay=replay)[0].state == "firing"
    assert changes_of(pushed(2, key="grad_norm"), replay=replay)[0].state == "firing"
    assert states(changes_of(pushed(2, 0), replay=replay)) == [("repeated", "info", 0), ("resolved", "info", 1)]
    assert [one.rank for one in changes_of(pushed(2, of=1), replay=replay)] == [1]


def test_a_new_attempt_begins_anew_and_resolves_what_fired() -> None:
    replay = Replay()
    changes_of(pushed(2), replay=replay)
    changes = changes_of(pushed(2, attempt=1), replay=replay)
    assert [one.state for one in changes] == ["resolved", "firing"]
    assert "attempt 1" in changes[0].message


def test_the_detectors_receive_the_phase() -> None:
    assert changes_of(pushed(2, phase="eval"))[0].message == "2 eval"
    assert changes_of(pushed(2))[0].message == "2"


def test_rows_without_a_place_are_counted_by_rank_and_key() -> None:
    rows = [row._replace(place=None) for of in (0, 1) for row in pushed(0, 0, 2, of=of)]
    rows.insert(1, PushedRow(None, 0, 0, 5, 5.0, "", {"grad_norm": 2.0, "other": 3.0}))
    found = [(one.key, one.rank, one.place) for one in changes_of(iter(rows))]
    assert found == [("grad_norm", 0, 0), ("loss", 0, 2), ("loss", 1, 2)]


def test_every_alert_that_detectors_report_is_known() -> None:
    assert {"NonFinite", "SlowStep", "HostMemoryLeak"} <= set(rank_detectors.ALERTS)
    assert len(set(rank_detectors.ALERTS)) == len(rank_detectors.ALERTS)
