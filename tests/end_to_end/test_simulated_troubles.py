"""Alerts that need minutes or hours, or hardware that no test can break, through the whole pipeline.

The test sets the clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from alerts.test_builtin import TROUBLE_AT, TROUBLES, healthy
from end_to_end.test_troubles import OF_TIME
from in_process_daemon import InProcessDaemon, alerts_above_info
from msgspec.structs import replace
from wire_messages import FakeSession, clock

from trackside.wire import TrainingEvent

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

GIB = 2.0**30
EVERY = 5.0


def run(
    whole: InProcessDaemon, seconds: float, values: Callable[[float], Mapping[str, float | None]], every: float = EVERY
) -> None:
    """Tick for so many seconds, with the values that *values* returns for the seconds since the first tick."""
    begun = whole.after
    while whole.after <= begun + seconds:
        found = values(whole.after - begun)
        whole.tick({name: value for name, value in found.items() if value is not None})
        whole.after += every


@pytest.mark.parametrize("alert", OF_TIME)
def test_it_fires_through_the_whole_pipeline(whole: InProcessDaemon, alert: str) -> None:
    """The alert fires neither earlier nor in a quiet time of the same length."""
    within, trouble = next((within, trouble) for name, _, within, trouble in TROUBLES if name == alert)
    run(whole, max(TROUBLE_AT, within), healthy)
    assert whole.alerts == []
    begun = whole.after
    run(whole, within + EVERY, lambda since: {**healthy(begun + since), **trouble(since)})
    assert alert in {one.alert for one in whole.alerts}
    assert whole.failures() == {}


class Training:
    """A run of one rank that makes a step each half minute.

    Attributes:
        saves: Seconds from one checkpoint to the next; 0 for none.
    """

    def __init__(self, whole: InProcessDaemon) -> None:
        self.saves = 600.0
        self._whole = whole
        self._speaker = FakeSession("long", name="long", pid=0, boot="")
        self._step, self._saved, self._number = 0, 0.0, 0
        whole.receive(self._speaker.frames("hello", self._speaker.hello(whole.after)))

    def lose(self, messages: int) -> None:
        """Skip so many messages, and notify the daemon of the gap."""
        first = self._number + 1
        self._number += messages
        self._whole.receive(self._speaker.skip(first, self._number))

    def go_on(self, seconds: float) -> None:
        """Train for so many seconds."""
        whole = self._whole
        end = whole.after + seconds
        while whole.after < end:
            self._step += 1
            self._number += 1
            body = self._speaker.pushes({"reward": 1.0}, step=self._step, after=whole.after)
            if self.saves and whole.after - self._saved >= self.saves:
                self._saved = whole.after
                body = replace(body, events=[TrainingEvent("checkpoint", clock(whole.after).monotonic, self._step)])
            whole.receive(self._speaker.frames("batch", body, self._number))
            run(whole, 30.0 - EVERY, lambda _: {})


def test_a_checkpoint_that_does_not_come(whole: InProcessDaemon) -> None:
    training = Training(whole)
    training.go_on(4000)
    assert alerts_above_info(whole.alerts) == set()
    training.saves = 0
    training.go_on(4000)
    assert alerts_above_info(whole.alerts) == {("CheckpointOverdue", "warning")}


def test_messages_that_a_client_had_to_drop(whole: InProcessDaemon) -> None:
    training = Training(whole)
    training.go_on(600)
    assert whole.alerts == [one for one in whole.alerts if one.alert == "RunStarted"]
    training.lose(500)
    training.go_on(60)
    assert alerts_above_info(whole.alerts) == {("MonitorBlind", "warning")}


def test_memory_of_a_gpu_that_grows_for_hours(whole: InProcessDaemon) -> None:
    def held(growth: float) -> Callable[[float], Mapping[str, float]]:
        return lambda since: {
            "trackside_process_info{pid=7,role=rank,run=long,run_id=long,rank=0}": 1.0,
            "trackside_gpu_process_memory_bytes{gpu=0,uuid=G,pid=7}": 40 * GIB
            + growth * since / 3600
            + since % 7 * 2**20,
            "trackside_training_step{run=long,rank=0}": whole.after,
        }

    run(whole, 7200, held(0.0), 10.0)
    assert whole.alerts == []
    run(whole, 7200, held(8 * GIB), 10.0)
    assert alerts_above_info(whole.alerts) == {("GpuMemoryLeak", "warning")}
