"""Numbers of a process that cannot be: they are refused, and a stage that fails on something else is still logged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from ingest.conftest import SessionsHarness
from wire_messages import FakeSession

from trackside.log_once import LogOnce
from trackside_daemon.history.record.trimming import Bounds
from trackside_daemon.history.recorder import HistoryRecorder
from trackside_daemon.model.families import daemon
from trackside_daemon.model.metric import Batch
from trackside_daemon.model.state import State
from trackside_daemon.pipeline.pipeline import Pipeline

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NUMBERS = ("attempt", "rank", "local_rank", "world", "local_world", "pid", "start")


@pytest.mark.parametrize("number", [-1, -5, -(2**63), 2**64 - 1])
@pytest.mark.parametrize("name", NUMBERS)
def test_a_hello_with_an_impossible_number_is_refused(name: str, number: int) -> None:
    desk = SessionsHarness()
    fields: dict[str, Any] = {name: number}
    assert desk.greet(FakeSession(**fields)) == []
    assert desk.counts(daemon.INGEST_REJECTED) == {"body": 1.0}
    assert not desk.house.records


class Failing(State):
    """A state that fails on batches whose source says how."""

    def update(self, batch: Batch) -> None:
        if batch.source == "key":
            raise KeyError(batch.source)
        if batch.source.startswith("value"):
            raise ValueError(batch.source)
        if batch.source == "other value":
            raise ValueError(batch.source)  # of the same type, in another place
        super().update(batch)


@pytest.fixture
def pipeline(place: Path) -> Iterator[Pipeline]:
    history = HistoryRecorder(place, Bounds(0), acknowledge=lambda _: None)
    history.start()
    yield Pipeline(Failing(), history)
    history.stop()
    history.close()


def test_each_kind_of_failure_of_a_stage_is_logged_once(pipeline: Pipeline, caplog: pytest.LogCaptureFixture) -> None:
    for source in ("value 1", "key", "value 2", "other value", "key", "value 3"):
        pipeline.accept(Batch(source))
    logged = [
        f"stage state failed on a batch of {source}; further failures of this kind are only counted"
        for source in ("value 1", "key", "other value")
    ]
    assert caplog.messages == logged
    assert pipeline.failures["state"] == 6


def test_so_many_kinds_are_logged_and_no_more(
    pipeline: Pipeline, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "_logged", LogOnce(2))
    for source in ("value 1", "key", "other value"):
        pipeline.accept(Batch(source))
    assert len(caplog.messages) == 2
