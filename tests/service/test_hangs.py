"""Verdicts on runs that hang: when ranks are asked, and what becomes of their answers."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import pytest
from processes import eventually

from trackside.wire import Flight, FlightEntry, FlightGroup
from trackside_daemon.captures.captures import CaptureError, CaptureRequest
from trackside_daemon.collectors.process.process import TrainingProcess
from trackside_daemon.model.capture import AlertLink, RankAnswer
from trackside_daemon.model.families import training as f
from trackside_daemon.model.families.gpu import RANK_INFO, UTILIZATION
from trackside_daemon.model.metric import Batch, Distribution, Sample
from trackside_daemon.model.records import Alert, AlertNote
from trackside_daemon.model.state import State
from trackside_daemon.service.hangs import Hangs

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trackside_daemon.captures.kinds.kind import AskRanks

NOW = 1_700_000_000.0


def flight(last: int, *, ends: bool = False, line: int = 3) -> Flight:
    """Return the answer of a rank whose last collective has this number, and has ended or not."""
    entry = FlightEntry(last, "all_reduce", "completed" if ends else "scheduled", "[4] Float", 4, 30.0)
    group = FlightGroup("gloo", "0", "default_pg", [], [entry])
    return Flight({"MainThread 1": [f"/home/me/train.py:{line} main"]}, [group])


class Scene:
    """Ranks with given answers, one after the other, the last one for ever."""

    def __init__(self, world: int, retries: Sequence[float] = ()) -> None:
        self.state = State()
        self.answers: dict[int, list[Flight]] = {}
        self.notes: list[AlertNote] = []
        self.requests: list[CaptureRequest] = []
        self.processes: list[TrainingProcess] = []
        self.hangs = Hangs(
            cast("AskRanks", self.ask),
            self.state,
            lambda: self.processes,
            self.publish,
            self.capture,
            apart=0.0,
            retries=retries,
        )
        labels = dict.fromkeys(f.RUN_INFO.labels, "")
        labels |= {"run": "net", "run_id": "net-1", "world_size": str(world), "attempt": "2"}
        self.samples = [Sample(f.RUN_INFO, tuple(labels.values()), 1.0)]
        self.pushes: dict[int, list[float]] = {}

    def ask(
        self, kind: str, run: str, ranks: frozenset[int] | None = None, *_: Any, **__: Any
    ) -> tuple[frozenset[int], Sequence[RankAnswer]]:
        assert (kind, run) == ("flight?", "net-1")
        self.push()
        found = {rank: each.pop(0) if len(each) > 1 else each[0] for rank, each in self.answers.items() if each}
        asked = frozenset(self.answers) if ranks is None else ranks
        return asked, [RankAnswer(rank, 0.0, body) for rank, body in found.items() if rank in asked]

    def push(self) -> None:
        """Report the next time of the last push of each rank, the last one for ever."""
        times = {rank: each.pop(0) if len(each) > 1 else each[0] for rank, each in self.pushes.items()}
        samples = [Sample(f.LAST_STEP, ("net", str(rank)), at) for rank, at in times.items()]
        self.state.update(Batch("push", samples))

    def capture(self, request: CaptureRequest) -> None:
        self.requests.append(request)
        raise CaptureError("4 captures run already")

    def publish(self, batch: Batch) -> None:
        self.notes += [record for record in batch.records if isinstance(record, AlertNote)]

    def ranks(self, **states: str) -> None:
        """Set the states of ranks: ``r1="running"``."""
        more = [Sample(f.RANK_STATE, ("net", name[1:], state), 1.0) for name, state in states.items()]
        self.state.update(Batch("ranks", [*self.samples, *more], complete=True))

    def verdict(self, alert: str = "TrainingStalled", **labels: str) -> dict[str, Any] | None:
        """Return the verdict on an alert, once all that were asked have answered."""
        self.push()
        fired = Alert(alert, "warning", NOW, "net-1", {"run": "net", **labels})
        self.hangs.accept(Batch("alerts", records=[fired]))
        self.hangs._threads.shutdown()
        return {**self.notes[0].evidence["hang"], "note": self.notes[0]} if self.notes else None


@pytest.fixture
def scene(request: pytest.FixtureRequest) -> Iterator[Scene]:
    """Three ranks; the parameter has the pauses before the retries."""
    made = Scene(3, getattr(request, "param", ()))
    made.ranks()
    yield made
    made.hangs.stop()


def test_the_note_of_a_stall_has_the_verdict(scene: Scene) -> None:
    scene.answers = {0: [flight(32)], 1: [flight(31, ends=True, line=9)], 2: [flight(32)]}
    found = scene.verdict()
    assert found is not None
    note = found.pop("note")
    assert (note.alert, note.started, note.run, note.labels) == ("TrainingStalled", NOW, "net-1", {"run": "net"})
    assert note.evidence["conclusion"] == found["text"]
    assert found["text"].startswith("Rank 1 never arrived at all_reduce number 32")
    assert (found["ranks"], found["places"]["1"]) == ((1,), "train.py:9 in main")
    (request,) = scene.requests
    assert (request.run, request.attempt, request.kind, request.ranks) == ("net-1", 2, "flight_recorder", (0, 1, 2))
    assert request.cause == AlertLink("TrainingStalled", NOW, {"run": "net"})


@pytest.mark.parametrize(("used", "busy"), [(0.0, ()), (0.9, (1,))])
def test_a_rank_with_a_gpu_that_computes_is_busy(scene: Scene, used: float, busy: tuple[int, ...]) -> None:
    """The kernel may take minutes, while the CPU sleeps."""
    samples = [Sample(RANK_INFO, ("3", "GPU-3", "net", "1"), 1.0), Sample(UTILIZATION, ("3", "GPU-3"), used)]
    scene.state.update(Batch("gpu", samples))
    scene.answers = {0: [flight(32)], 1: [flight(31, ends=True)], 2: [flight(32)]}
    found = scene.verdict()
    assert found is not None
    assert found["busy"] == busy


@pytest.mark.parametrize("scene", [(0.0, 0.0, 0.0)], indirect=True)
def test_a_run_with_a_busy_rank_is_judged_again_until_it_hangs(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    def compute(used: float) -> None:
        samples = [Sample(RANK_INFO, ("3", "GPU-3", "net", "1"), 1.0), Sample(UTILIZATION, ("3", "GPU-3"), used)]
        scene.state.update(Batch("gpu", samples))

    def ask(*asked: Any, **more: Any) -> tuple[frozenset[int], Sequence[RankAnswer]]:
        looks.append(1)
        compute(0.9 if len(looks) <= 4 else 0.0)  # each look asks twice
        return scene.ask(*asked, **more)

    looks: list[int] = []
    monkeypatch.setattr(scene.hangs, "_ask", ask)
    scene.answers = {0: [flight(32)], 1: [flight(31, ends=True)], 2: [flight(32)]}
    scene.verdict()
    assert [note.evidence["hang"]["busy"] for note in scene.notes] == [(1,), ()]
    assert len(looks) == 6


def test_ranks_that_make_progress_have_no_verdict(scene: Scene) -> None:
    scene.answers = {0: [flight(32)], 1: [flight(31, ends=True), flight(32)], 2: [flight(32)]}
    assert scene.verdict() is None


@pytest.mark.parametrize("clock", [-3600.0, 0.5, 3600.0])
def test_a_push_after_the_alert_is_progress_by_any_clock(clock: float) -> None:
    for pushes, stands in ([NOW + clock], True), ([NOW + clock, NOW + clock + 0.1], False):
        scene = Scene(3)
        scene.answers, scene.pushes = {0: [flight(32)], 1: [flight(31, ends=True)]}, {1: pushes}
        assert (scene.verdict() is not None) is stands
        scene.hangs.stop()


def test_of_a_silent_rank_only_its_own_progress_counts(scene: Scene) -> None:
    scene.answers = {0: [flight(32), flight(40)], 1: [flight(31, ends=True, line=9)]}
    scene.pushes = {0: [NOW, NOW + 0.1]}
    found = scene.verdict("RankSilent", rank="1")
    assert found is not None
    assert found["ranks"] == (1,)


def test_a_death_has_a_verdict_if_others_wait(scene: Scene) -> None:
    scene.ranks(r1="failed")
    scene.answers = {0: [flight(32)], 2: [flight(32), flight(40)]}
    found = scene.verdict("TrainingProcessDied", rank="1")
    assert found is not None
    assert (found["kind"], found["ranks"], found["waiting"]) == ("ended", (1,), (0, 2))


def test_ranks_that_go_on_do_not_wait_for_one_that_has_died(scene: Scene) -> None:
    scene.ranks(r1="failed")
    scene.answers = {0: [flight(32), flight(40)], 2: [flight(32), flight(41)]}
    assert scene.verdict("TrainingProcessDied", rank="1") is None


def test_a_death_without_a_waiting_rank_has_no_verdict(scene: Scene) -> None:
    scene.ranks(r1="failed")
    scene.answers = {0: [flight(31, ends=True)], 2: []}
    assert scene.verdict("TrainingProcessDied", rank="1") is None


def test_ranks_that_are_not_asked_are_silent_if_they_live_here_and_unseen_otherwise(scene: Scene) -> None:
    scene.ranks(r1="stalled")
    scene.answers = {0: [flight(32)]}
    found = scene.verdict()
    assert found is not None
    assert (found["kind"], found["silent"], found["unseen"]) == ("silent", (1,), (2,))


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ("T", "it is stopped, and `kill -CONT 7` continues it"),
        ("D", "it waits for a device or a file system"),
        ("S", "a call holds the GIL"),
    ],
)
def test_the_state_of_a_silent_process_is_a_reason(scene: Scene, state: str, reason: str) -> None:
    scene.ranks(r1="stalled")
    scene.answers = {0: [flight(32)]}
    scene.processes = [TrainingProcess(7, 1, "rank", "python", state, "net", "net-1", 1, 0, 0.0, 1, None)]
    found = scene.verdict()
    assert found is not None
    assert found["text"].startswith(f"Rank 1 did not answer within 3 s: {reason}; all_reduce number 32")


@pytest.mark.parametrize("scene", [(0.0, 3600.0)], indirect=True)
def test_an_alert_without_a_verdict_is_judged_again_until_it_ends(scene: Scene) -> None:
    hangs = [flight(32)], [flight(31, ends=True)]
    scene.answers = {0: [flight(30), *hangs[0]], 1: hangs[1]}
    assert scene.verdict() is not None
    again = Scene(2, (3600.0,))
    again.answers = {0: [flight(number) for number in range(9)]}
    fired = Alert("TrainingStalled", "warning", NOW, "net-1", {"run": "net"})
    again.hangs.accept(Batch("alerts", records=[fired]))
    eventually(lambda: len(again.answers[0]) <= 7)
    again.hangs.accept(Batch("alerts", records=[replace(fired, ended=NOW + 9)]))
    again.hangs._threads.shutdown()  # which waits for the try that is not wanted any more
    assert again.notes == []


def test_a_person_gets_the_verdict_on_a_quiet_run(scene: Scene) -> None:
    scene.answers = {0: [flight(32)], 1: [flight(31, ends=True)]}
    assert scene.hangs.judge_now("net-1") is None  # nothing is known of its steps
    scene.ranks(r0="running")
    for quiet, usual, asked in ((7.0, 0.5, False), (30.0, 5.0, False), (60.0, 0.5, True)):
        steps = Distribution((100,), sum=100 * usual)
        pushed = [Sample(f.LAST_STEP, ("net", "0"), time.time() - quiet), Sample(f.STEP_DURATION, ("net", "0"), steps)]
        scene.state.update(Batch("push", pushed))
        found = scene.hangs.judge_now("net-1")
        assert (found is not None) is asked
    assert found is not None
    assert (found["ranks"], found["quiet_seconds"] >= 60) == ((1,), True)
    assert scene.hangs.judge_now("other") is None
    scene.ranks(r0="finished")
    assert scene.hangs.judge_now("net-1") is None


def test_only_alerts_about_hangs_that_begin_or_get_worse_are_judged(scene: Scene) -> None:
    scene.answers = {0: [flight(32)], 1: [flight(31, ends=True)]}
    begun = Alert("TrainingStalled", "warning", NOW, "net-1", {"run": "net"})
    worse = Alert("TrainingStalled", "critical", NOW, "net-1", {"run": "net"})
    for alert in (begun, begun, worse, Alert("LossSpike", "warning", NOW, "net-1", {"run": "net"})):
        scene.hangs.accept(Batch("alerts", records=[alert]))
    eventually(lambda: len(scene.notes) == 2)
    assert len(scene.requests) == 1
    scene.hangs.accept(Batch("alerts", records=[replace(worse, evidence={"since": NOW + 5})]))
    eventually(lambda: len(scene.notes) == 3)
    scene.hangs.stop()
    scene.hangs.accept(Batch("alerts", records=[Alert("RankSilent", "warning", NOW, "net-1", {"rank": "0"})]))
    assert len(scene.notes) == 3


def test_the_verdict_on_a_hang_is_not_that_on_the_next_one_of_its_alert(scene: Scene) -> None:
    begun = Alert("TrainingStalled", "warning", NOW, "net-1", {"run": "net"}, evidence={"since": NOW})
    again = {"since": NOW + 9, "occurrences": [{"number": 2, "time": NOW + 9}]}
    asked: list[int] = []

    def ask(*of: Any, **more: Any) -> tuple[frozenset[int], Sequence[RankAnswer]]:
        asked.append(1)
        if len(asked) == 2:  # the run went on, and hangs again
            scene.answers = {0: [flight(40)], 1: [flight(39, ends=True, line=5)]}
            scene.hangs.accept(Batch("alerts", records=[replace(begun, severity="critical", evidence=again)]))
        return found if len(asked) == 2 else scene.ask(*of, **more)

    scene.answers = {0: [flight(32)], 1: [flight(31, ends=True)]}
    found = scene.ask("flight?", "net-1")
    scene.hangs._ask = cast("AskRanks", ask)
    scene.hangs.accept(Batch("alerts", records=[begun]))
    eventually(lambda: len(scene.notes) >= 1)
    scene.hangs._threads.shutdown()
    assert [note.evidence["hang"]["sequence"] for note in scene.notes] == [40]


def test_of_a_rank_that_fell_silent_after_another_its_own_progress_counts(scene: Scene) -> None:
    """The label of the alert, which still fires, names the other."""
    scene.answers = {0: [flight(9)], 1: [flight(number) for number in range(9)]}
    alert = Alert("RankSilent", "warning", NOW, "net-1", {"run": "net", "rank": "1"}, evidence={"ranks": {"0": {}}})
    scene.hangs.accept(Batch("alerts", records=[alert]))
    scene.hangs._threads.shutdown()
    assert len(scene.notes) == 1


def test_an_answer_that_breaks_a_verdict_is_logged_and_costs_no_other(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.answers = {0: [None]}  # type: ignore[list-item]
    assert scene.verdict() is None
    assert "no verdict on TrainingStalled of run net-1" in caplog.text
