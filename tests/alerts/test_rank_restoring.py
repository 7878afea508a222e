"""Restoring detectors after a restart, while clients push already: from a real history, rank by rank."""

from __future__ import annotations

from math import nan
from typing import TYPE_CHECKING

import pytest
from alerts.test_replay_history import SHIFT, train
from histories import BEGIN, History
from session_records import batch_ingested, session_opened

from trackside.packing import pack
from trackside.wire import Block, Clock, Hello, Identity, Totals
from trackside_daemon.alerts.rank_restoring import PastRanks, RankRestoring
from trackside_daemon.detectors.rank_watch import RankWatch
from trackside_daemon.model.metric import Batch
from trackside_daemon.model.records import RunState

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from trackside_daemon.model.finding import Finding
    from trackside_daemon.model.records import Record

RANKS = 3


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    made = History(tmp_path)
    for rank in range(RANKS):
        train(made, "live", rank, 64)
    yield made
    made.close()


def reconnects(rank: int) -> Record:
    hello = Hello(Identity("live", "name-live", rank=rank, world=2), Clock(SHIFT, 0), SHIFT, Totals())
    return session_opened(b"live" + bytes([rank]), hello, "name-live", 0, BEGIN + 64)


def pushes(rank: int, step: int, loss: float) -> Record:
    block = Block(["loss"], pack("q", [step]), pack("q", [step * 10**9]), pack("d", [loss]))
    return batch_ingested(b"live" + bytes([rank]), step, [block], SHIFT)


def found(watch: RankWatch, *records: Record) -> list[tuple[str, str]]:
    findings: list[Finding] = watch.accept(Batch("ingest", records=records))
    return [(one.alert, dict(one.labels)["rank"]) for one in findings if not one.over]


def test_what_ranks_push_before_they_are_restored_is_judged_by_their_past(history: History) -> None:
    watch = RankWatch()
    restoring = RankRestoring([watch], PastRanks(history.database), [])
    assert found(watch, *map(reconnects, range(RANKS))) == []
    # The losses of the past are the steps, so that 1,000 jumps, as 64 would not.
    for rank in range(RANKS):
        assert found(watch, pushes(rank, 64, 1000.0)) == []
    assert restoring.step()
    assert found(watch) == [("LossHardBatch", "0")]
    assert restoring.step()
    assert restoring.step()
    assert not restoring.step()
    assert found(watch) == [("LossHardBatch", "1"), ("LossHardBatch", "2")]
    assert found(watch, pushes(0, 65, nan)) == [("NonFinite", "0")]


def test_an_end_is_applied_to_ranks_that_are_restored_after_it(history: History) -> None:
    watch = RankWatch()
    restoring = RankRestoring([watch], PastRanks(history.database), [])
    found(watch, reconnects(0), pushes(0, 64, 1000.0), RunState("live", 0, "finished", "", BEGIN + 65))
    while restoring.step():
        pass
    findings = [one for one in watch.accept(Batch("ingest")) if one.alert == "LossHardBatch"]
    assert [(dict(one.labels)["rank"], one.over) for one in findings] == [("0", False), ("0", True)]


def test_ranks_that_are_left_when_the_time_is_over_start_anew(
    history: History, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    watch = RankWatch()
    restoring = RankRestoring([watch], PastRanks(history.database), [])
    seconds = iter(range(10))
    restoring.start(2, lambda: float(next(seconds)))
    found(watch, *map(reconnects, range(RANKS)), pushes(2, 64, nan))
    restoring.give_up()
    assert found(watch) == [("NonFinite", "2")]
    assert caplog.messages[0] == "the detectors of 2 ranks start without past samples: reading them took too long"
