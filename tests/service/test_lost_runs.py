"""Runs that are lost while no daemon runs: what the detectors had restored of them ends."""

from __future__ import annotations

import time
from math import nan
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from histories import BEGIN, history, ingested, opened

from trackside.wire import Identity
from trackside_daemon.alerts.active_alerts import ActiveAlerts
from trackside_daemon.alerts.rank_restoring import PastRanks, RankRestoring
from trackside_daemon.detectors.rank_watch import RankWatch
from trackside_daemon.model.records import Alert, RunState
from trackside_daemon.model.session import Owner
from trackside_daemon.service.lost_runs import LostRuns
from trackside_daemon.training.admission import PageLimits
from trackside_daemon.training.runs import Runs

if TYPE_CHECKING:
    from pathlib import Path

    from trackside_daemon.model.metric import Batch

NAN = Alert("NonFinite", "critical", BEGIN + 61, "run", {"key": "loss", "rank": "0", "run": "run"}, "NaN")


def ends(last_attempt: tuple[int, float | None]) -> list[Batch]:
    """Return the batches with the end of a run whose process is gone, and whose last attempt the history knows."""
    part: Any = SimpleNamespace
    lost = LostRuns(
        part(abandon=lambda *_: [(Identity("run", "run"), time.time() - 10)]),
        Runs(PageLimits(), 60.0, last_attempt=lambda _: last_attempt),
        part(of_run=lambda _: Owner()),
        part(open_spooled=lambda *_: ()),
        part(hellos=dict),
        requests=part(),
        liveness=part(),
        judge=lambda: None,
    )
    batches: list[Batch] = []
    lost.end_missed(batches.append)
    return batches


def test_an_alert_of_a_run_that_was_lost_without_a_daemon_ends(tmp_path: Path) -> None:
    pushes = [(step, round((BEGIN + step) * 1e6), {"loss": nan if step > 60 else 1.0}) for step in range(64)]
    watch, active, now = RankWatch(), ActiveAlerts(), time.time()
    with history(tmp_path / "history") as kept:
        kept.put([opened("run"), ingested("run", pushes)])
        RankRestoring([watch], PastRanks(kept.database), [NAN]).start(60)
    active.restore([NAN], now)
    for batch in ends((0, 0.0)):
        active.accept(watch.accept(batch), now)
    (over,) = (one for batch in active.tick(now + 1) for one in batch.records if isinstance(one, Alert))
    assert over.alert == "NonFinite"
    assert over.ended == pytest.approx(now + 1)


def test_a_run_that_has_come_back_meanwhile_does_not_end() -> None:
    assert not [one for batch in ends((0, None)) for one in batch.records if isinstance(one, RunState)]
