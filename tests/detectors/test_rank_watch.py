"""Findings in the pushes of ranks to the daemon: the rank they belong to, new findings, and their end."""

from __future__ import annotations

from dataclasses import replace
from math import nan
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from detectors.running import ID, Running
from session_records import batch_ingested, session_opened

from trackside.packing import pack
from trackside.wire import Block, Clock, Hello, Identity, Totals
from trackside_daemon.detectors import rank_watch as module
from trackside_daemon.detectors.rank_watch import RankWatch
from trackside_daemon.model.metric import Batch
from trackside_daemon.model.records import BatchIngested, Event, RunState, SessionOpened

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trackside_daemon.model.finding import Finding
    from trackside_daemon.model.records import Record

SHIFT = 1_700_000_000_000_000_000
SECOND = 1_000_000_000


def opened(session: bytes = b"s", *, rank: int = 0, attempt: int = 0, world: int = 1, run: str = "id") -> SessionOpened:
    identity = Identity(run, f"name-{run}", rank=rank, world=world)
    hello = Hello(identity, Clock(SHIFT, 0), SHIFT, Totals())
    return session_opened(session, hello, f"name-{run}", attempt, 1.7e9)


def opened_of(steps: int) -> SessionOpened:
    return session_opened(
        b"s", Hello(Identity("id", "name-id"), Clock(SHIFT, 0), SHIFT, Totals(), total_steps=steps), "name-id", 0, 1.7e9
    )


def block(first: int, columns: Mapping[str, Sequence[float]], seconds: Sequence[float] = ()) -> Block:
    """Return a block of steps from *first* on, each a second long or as long as *seconds* gives."""
    rows = len(next(iter(columns.values())))
    times, now = [], float(first)
    for row in range(rows):
        times.append(round(now * SECOND))
        now += seconds[row] if seconds else 1.0
    values = [column[row] for row in range(rows) for column in columns.values()]
    return Block(list(columns), pack("q", range(first, first + rows)), pack("q", times), pack("d", values))


def ingested(*blocks: Block, session: bytes = b"s", **more: Any) -> BatchIngested:
    return batch_ingested(session, 1, blocks, SHIFT, **more)


def findings_of(watch: RankWatch, *records: Record) -> list[Finding]:
    return watch.accept(Batch("ingest", records=records))


@pytest.fixture
def watch() -> RankWatch:
    return RankWatch()


def test_a_nan_is_reported_with_its_run_key_step_and_time(watch: RankWatch) -> None:
    (found,) = findings_of(watch, opened(), ingested(block(0, {"a": [1.0, 1.0, 1.0], "loss": [2.5, nan, 2.5]})))
    assert (found.alert, found.severity, found.run, found.over, found.once) == (
        "NonFinite",
        "critical",
        "id",
        False,
        False,
    )
    assert found.labels == (("key", "loss"), ("rank", "0"), ("run", "name-id"))
    assert found.summary == "name-id: loss: NaN at step 1; the last finite value was 2.5"
    assert found.time == 1.7e9 + 1
    assert "checkpoint" in found.description


@pytest.mark.parametrize("aside", [False, True])
def test_steps_of_another_count_are_no_evidence_since_no_batch_or_checkpoint_has_them(
    watch: RankWatch, *, aside: bool
) -> None:
    pushed = msgspec.structs.replace(block(0, {"val_loss": [2.5, nan]}), aside=aside)
    (found,) = findings_of(watch, opened(), ingested(pushed))
    assert found.evidence == ({} if aside else {"step": 1, "doubtful_from_step": 0})


def test_a_rank_is_named_where_there_are_several(watch: RankWatch) -> None:
    (found,) = findings_of(watch, opened(rank=3, world=8), ingested(block(0, {"train/loss": [nan]})))
    assert found.summary.startswith("name-id, rank 3: train/loss: NaN at step 0")


def test_it_is_over_when_the_values_are_finite_again(watch: RankWatch) -> None:
    findings_of(watch, opened(), ingested(block(0, {"loss": [nan]})))
    (found,) = findings_of(watch, ingested(block(1, {"loss": [1.0] * 10})))
    assert (found.alert, found.over, "recovered" in found.evidence) == ("NonFinite", True, True)
    assert found.labels == (("key", "loss"), ("rank", "0"), ("run", "name-id"))


def test_steps_are_timed_by_when_they_were_pushed(watch: RankWatch) -> None:
    seconds = [1.0 + number % 3 / 100 for number in range(40)]
    seconds[30] = 10.0
    (found,) = findings_of(watch, opened(), *(ingested(block(0, {"x": [0.0] * 40}, seconds)) for _ in range(1)))
    assert (found.alert, dict(found.labels)["key"]) == ("SlowStep", "step_duration_seconds")
    assert "10 s passed between the pushes of step 30 and the next, " in found.summary


def test_a_few_milliseconds_are_no_slow_step(watch: RankWatch) -> None:
    seconds = [0.001 + number % 3 / 1e5 for number in range(40)]
    seconds[30] = 0.02
    assert findings_of(watch, opened(), ingested(block(0, {"x": [0.0] * 40}, seconds))) == []


def test_the_end_of_a_run_on_a_noisy_host_counts_its_slow_steps(watch: RankWatch) -> None:
    seconds = [0.5 if step in {70, 93, 121, 160, 177} else 0.02 + step % 3 / 1e4 for step in range(300)]
    assert findings_of(watch, opened(run=ID), ingested(block(0, {"x": [0.0] * 300}, seconds))) == []
    run = Running(slow_steps=watch.slow_steps)
    run.marks("finished")
    assert run.findings_of("RunFinished")[0].summary.endswith(": 5 slow steps lost 2.4 s")


def test_time_in_evaluation_is_no_step_s(watch: RankWatch) -> None:
    seconds = [1.0 + number % 3 / 100 for number in range(40)]
    seconds[30] = 10.0
    assert (
        findings_of(
            watch,
            opened(),
            ingested(block(0, {"x": [0.0] * 40}, seconds), phases={"eval": 9.0, "train": 40.0}, paused=9.0),
        )
        == []
    )


def test_marked_phases_of_a_fast_training_are_no_slow_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Evaluations and checkpoints of 50 ms, several in a message, are 10 times as long as the steps."""
    monkeypatch.setattr(module, "LOST", 0.0)
    watch, now, pauses = RankWatch(), 0.0, 0.0
    findings_of(watch, opened())
    found = []
    for first in range(0, 1200, 40):
        rows, paused = [], 0.0
        for step in range(first, first + 40):
            rows.append(round(now * SECOND))
            paused, pauses = paused + pauses, 0.05 * ((step % 25 == 0) + (step % 130 == 0))
            now += 0.01 + step % 3 / 1e4 + pauses
        steps = range(first, first + 40)
        one = Block(["x"], pack("q", steps), pack("q", rows), pack("d", [0.0] * 40))
        found += findings_of(watch, ingested(one, phases={"eval": now}, paused=paused))
    assert found == []
    assert watch.slow_steps("id", 0).count == 0


def test_a_pause_that_is_reported_without_rows_counts_for_the_next_steps(watch: RankWatch) -> None:
    seconds = [1.0 + number % 3 / 100 for number in range(40)]
    seconds[30] = 10.0
    pause = ingested(phases={"eval": 9.0, "train": 40.0}, paused=9.0)
    assert findings_of(watch, opened(), pause, ingested(block(0, {"x": [0.0] * 40}, seconds))) == []


def test_durations_do_not_depend_on_how_steps_are_cut_into_messages(watch: RankWatch) -> None:
    seconds = [1.0 + number % 3 / 100 for number in range(60)]
    seconds[30] = seconds[45] = 10.0
    whole = findings_of(watch, opened(), ingested(block(0, {"loss": [2.0] * 60}, seconds)))
    single, now = RankWatch(), 0.0
    apart = findings_of(single, opened())
    for step, took in enumerate(seconds):
        one = Block(["loss"], pack("q", [step]), pack("q", [round(now * SECOND)]), pack("d", [2.0]))
        apart += findings_of(single, ingested(one))
        now += took
    assert len(whole) >= 2
    assert sorted(apart) == sorted(whole)


def test_a_duration_that_the_training_pushes_counts_instead(watch: RankWatch) -> None:
    pushed = [1.0 + number % 3 / 100 for number in range(40)]
    seconds = [*pushed[:30], 10.0, *pushed[31:]]
    assert findings_of(watch, opened(), ingested(block(0, {"step_duration_seconds": pushed}, seconds))) == []


def test_late_findings_are_reported_once_the_feed_has_caught_up_and_fire_still(watch: RankWatch) -> None:
    assert findings_of(watch, opened(), ingested(block(0, {"loss": [nan] * 3}), late=True)) == []
    (found,) = findings_of(watch, ingested(block(3, {"loss": [2.0]})))
    assert (found.alert, found.over) == ("NonFinite", False)


@pytest.mark.parametrize("known", [False, True])
def test_the_spool_of_a_process_that_has_ended_is_judged_as_of_its_own_time(watch: RankWatch, *, known: bool) -> None:
    before, live = opened(), opened(attempt=1)
    spooled = replace(before, session=before.session._replace(late=True))
    findings_of(watch, *[live] * known, spooled, spooled)
    rows = ingested(block(0, {"loss": [2.0, nan]}), late=True)
    (found,) = findings_of(watch, replace(rows, session=spooled.session))
    assert (found.alert, found.time, found.late) == ("NonFinite", 1.7e9 + 1, True)
    ended = RunState("id", 0, "finished", "", 1.7e9 + 3, late=True)
    (end,) = findings_of(watch, ended)
    assert (end.alert, end.over, end.time, end.late) == ("NonFinite", True, 1.7e9 + 1, True)
    assert findings_of(watch, ended) == []


def test_of_many_spools_the_first_is_given_up(watch: RankWatch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SPOOLS", 1)
    for name in (b"a", b"b"):
        spooled = opened(name, run=name.decode())
        spooled = replace(spooled, session=spooled.session._replace(late=True))
        found = findings_of(watch, spooled, replace(ingested(block(0, {"loss": [nan]})), session=spooled.session))
        assert [(one.run, one.over) for one in found] == [("a", True)] * (name == b"b") + [(name.decode(), False)]


def test_what_came_late_and_is_over_is_no_news(watch: RankWatch) -> None:
    assert findings_of(watch, opened(), ingested(block(0, {"loss": [nan, *[1.0] * 10]}), late=True)) == []
    assert findings_of(watch, ingested(block(11, {"loss": [2.0]}))) == []


@pytest.mark.parametrize(
    "end",
    [
        Event("id", 0, 2.0, "rank_ended", 0),
        RunState("id", 0, "failed", "", 2.0),
        opened(b"t", attempt=1),
        opened(b"t", attempt=1, rank=5),
    ],
)
def test_nothing_fires_of_what_has_ended(watch: RankWatch, end: Record) -> None:
    findings_of(watch, opened(), ingested(block(0, {"loss": [nan]})))
    (found,) = findings_of(watch, end)
    assert (found.alert, found.over, found.run) == ("NonFinite", True, "id")
    assert findings_of(watch, end) == []


@pytest.mark.parametrize(
    "other",
    [
        Event("id", 0, 2.0, "rank_ended", 1),
        Event("id", 1, 2.0, "rank_ended", 0),
        Event("id", 0, 2.0, "checkpoint", 0),
        RunState("id", 0, "running"),
        RunState("other", 0, "failed", "", 2.0),
        opened(b"t", run="other"),
    ],
)
def test_the_end_of_another_ends_nothing(watch: RankWatch, other: Record) -> None:
    findings_of(watch, opened(), ingested(block(0, {"loss": [nan]})))
    assert findings_of(watch, other) == []
    (found,) = findings_of(watch, ingested(block(1, {"loss": [nan]})))
    assert not found.over


@pytest.mark.parametrize("state", ["failed", "finished", "lost"])
def test_what_is_found_in_rows_that_the_end_of_their_process_has_overtaken_is_over_at_once(
    watch: RankWatch, state: str
) -> None:
    findings_of(
        watch,
        opened(),
        ingested(block(0, {"loss": [2.0]})),
        Event("id", 0, 2.0, "rank_ended", 0, fields={"state": state}),
    )
    found = findings_of(watch, ingested(block(1, {"loss": [nan]})))
    assert [(one.alert, one.over) for one in found] == [("NonFinite", False), ("NonFinite", True)][
        : 1 + (state != "lost")
    ]
    findings_of(watch, opened(b"t"))
    assert [one.over for one in findings_of(watch, ingested(block(2, {"loss": [nan]}), session=b"t"))] == [False]


def test_a_run_that_was_lost_and_is_back_is_examined_again(watch: RankWatch) -> None:
    findings_of(watch, opened(), RunState("id", 0, "lost", "", 2.0))
    assert [one.alert for one in findings_of(watch, ingested(block(1, {"loss": [nan]})))] == ["NonFinite"]


def test_values_of_an_unknown_session_are_ignored(watch: RankWatch) -> None:
    assert findings_of(watch, ingested(block(0, {"loss": [nan]}))) == []


def test_an_ended_run_makes_room(
    watch: RankWatch, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "RANKS", 2)
    findings_of(watch, *(opened(bytes([rank]), rank=rank) for rank in range(4)))
    findings_of(watch, Event("id", 0, 2.0, "rank_ended", 1), opened(b"new", rank=9))
    found = findings_of(
        watch, *(ingested(block(0, {"loss": [nan]}), session=speaker) for speaker in (b"\0", b"\1", b"\2", b"new"))
    )
    assert [dict(one.labels)["rank"] for one in found] == ["0", "9"]
    assert caplog.messages == ["more than 2 ranks push: the detectors ignore the others"]


def test_a_quiet_training_reports_nothing(watch: RankWatch) -> None:
    rows = range(400)
    values = {
        "loss": [3.0 - row / 500 + (row * 7919 % 13) / 200 for row in rows],
        "grad_norm": [1.0 + (row * 104729 % 11) / 20 for row in rows],
        "lr": [3e-4 for _ in rows],
    }
    seconds = [0.5 + (row * 31 % 7) / 200 for row in rows]
    assert findings_of(watch, opened(), ingested(block(0, values, seconds))) == []


def test_a_duration_that_the_training_pushes_is_not_judged_where_it_was_in_a_pause(watch: RankWatch) -> None:
    calm = [1.0 + number % 3 / 100 for number in range(40)]
    findings_of(watch, opened(), ingested(block(0, {"step_duration_seconds": calm}), phases={"eval": 0.0}))
    assert (
        findings_of(watch, ingested(block(40, {"step_duration_seconds": [30.0]}), phases={"eval": 29.0}, paused=29.0))
        == []
    )
    (found,) = findings_of(watch, ingested(block(41, {"step_duration_seconds": [30.0]}), phases={"eval": 29.0}))
    assert found.alert == "SlowStep"


@pytest.mark.parametrize(("total", "places"), [(3000, [500]), (550, [])])
def test_a_low_learning_rate_is_reported_if_the_run_has_many_more_steps(
    watch: RankWatch, total: int, places: list[int]
) -> None:
    pushed = block(0, {"learning_rate": [*([1e-4] * 400), *([1e-9] * 150)]})
    assert [int(found.time - 1.7e9) for found in findings_of(watch, opened_of(total), ingested(pushed))] == places
