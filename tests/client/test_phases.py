"""Time by phase: phases that share it out among them, and waits for data."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from itertools import count, islice
from typing import TYPE_CHECKING, Any

import pytest
from client.messages import CLOCK, a_session, later

import trackside
from trackside.limits import SESSION_PHASES
from trackside.totals.phases import MAX_TIMES_USUAL, Phase, PhaseMark, PhaseTimes, TimedLoader
from trackside.wire import decode_body

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trackside.process_state import ProcessState

SECOND = 1_000_000_000


class RecordedMarks:
    """The marks that were reported, in order."""

    def __init__(self) -> None:
        self.marks: list[PhaseMark] = []

    def __call__(self, moment: int, mark: PhaseMark) -> None:
        assert moment > 0
        self.marks.append(mark)

    @property
    def words(self) -> list[str]:
        return [f"{'+' if mark.enters else '-'}{mark.phase}" for mark in self.marks]


def marked(word: str) -> PhaseMark:
    """Return the mark that ``+name`` or ``-name`` stands for.

    A star follows the name of an automatic mark. Numbers of timed and of left-out steps may follow the star: ``-*1/9``.
    """
    name, star, counts = word[1:].partition("*")
    timed, _, left_out = counts.partition("/")
    return PhaseMark(word[0] == "+", name, automatic=bool(star), timed=int(timed or 0), left_out=int(left_out or 0))


def times(*marks: tuple[float, str], end: float) -> dict[str, float]:
    """Return the seconds by phase after marks at some seconds."""
    found = PhaseTimes(0)
    for second, word in marks:
        found.accept(round(second * SECOND), marked(word))
    found.advance(round(end * SECOND))
    return found.seconds


def test_phases_are_exclusive_and_sum_to_the_time_since_the_beginning() -> None:
    found = times((1, "+eval"), (2, "+data"), (4, "-data"), (8, "-eval"), (9, "+eval"), end=16)
    assert found == {"other": 2.0, "eval": 5.0 + 7.0, "data": 2.0}
    assert sum(found.values()) == 16


def test_of_steps_that_are_not_timed_the_time_is_shared_out_as_it_was_in_those_that_were() -> None:
    found = times(
        *((1, "+forward*"), (3, "-forward*"), (4, "-*1/9")),
        *((14, "+data"), (18, "-data")),
        *((20, "+eval"), (25, "-eval"), (28, "+*"), (28, "+forward*"), (36, "-forward*"), (36, "-*1/9")),
        end=46,
    )
    # Of the first 4 seconds 2 were forward, and so are 7.5 of the 15 that were not timed. Of the next 8 all were; what was seen
    # before counts a little less then.
    assert found["data"] == 4.0
    assert found["eval"] == 5.0
    assert found["forward"] == pytest.approx(2 + 7.5 + 8 + 10 * (8 + 2 * 7 / 8) / (8 + 4 * 7 / 8), rel=1e-6)
    assert sum(found.values()) == 46


def test_what_is_longer_than_so_many_steps_is_no_stage_of_theirs() -> None:
    found = times((1, "+forward*"), (3, "-forward*"), (4, "-*2/4"), (64, "+*"), end=64)
    assert found == {"forward": 2 + 4 * MAX_TIMES_USUAL, "other": 54.0}  # a step has 1 s of it, and four were not timed


def test_what_has_marks_in_every_step_is_measured_and_takes_no_share_of_the_rest() -> None:
    found = times(
        *((0, "+data*"), (1, "-data*"), (1, "+forward*"), (2, "-forward*"), (4, "-*1/9")),
        *((6, "+data*"), (7, "-data*"), (14, "+eval*"), (16, "-eval*"), (19, "+data*"), (20, "-data*")),
        *((20, "+*"), (20, "+data*"), (21, "-data*"), (21, "-*1/9")),
        end=25,
    )
    assert (found["data"], found["eval"]) == (4.0, 2.0)
    assert found["forward"] == pytest.approx(1 + 12 / 3 + 4 / 3)
    assert sum(found.values()) == pytest.approx(25)


def test_what_is_estimated_is_so_by_the_phase_of_the_users_own_and_counters_never_fall() -> None:
    found = PhaseTimes(0)
    marks = [
        *((0, "+train"), (1, "+forward*"), (4, "-forward*"), (4, "-train"), (4, "-*1/9")),
        *((10, "+train"), (14, "-train"), (20, "+*"), (21, "+backward*"), (24, "-backward*"), (25, "-*1/9"), (35, "")),
    ]
    before: dict[str, float] = {}
    for second, word in marks:
        if word:
            found.accept(second * SECOND, marked(word))
        else:
            found.advance(second * SECOND)
        assert all(found.seconds.get(name, 0.0) >= seconds for name, seconds in before.items())
        before = found.seconds
    assert before["forward"] == pytest.approx(3 + 4 * 3 / 4)
    assert before["train"] == pytest.approx(1 + 4 / 4)
    assert before["backward"] == pytest.approx(3 + 10 * 3 / 5)


def test_what_a_gpu_waits_for_other_ranks_counts_in_place_of_unmarked_time_of_the_host() -> None:
    found = PhaseTimes(0)
    for second, word in ((1, "+forward*"), (2, "-forward*"), (4, "+data*")):
        found.accept(second * SECOND, marked(word))
    found.wait_on_device(2.5)
    for second, word in ((5, "-data*"), (6, "+own"), (8, "-own"), (10, "+eval*"), (11, "-eval*")):
        found.accept(second * SECOND, marked(word))
    found.advance(12 * SECOND)
    assert found.seconds == {"forward": 1, "data": 1, "own": 2, "eval": 1, "sync": 2.5, "other": 4.5}
    assert found.paused == SECOND


def test_without_a_phase_there_is_nothing_to_send() -> None:
    assert times(end=5) == {}


def test_ends_without_a_beginning_and_beginnings_without_an_end_do_no_harm() -> None:
    assert times((1, "-eval"), end=2) == {}
    assert times((1, "+eval"), (2, "+data"), (3, "-eval"), (4, "-data"), end=5) == {
        "other": 3.0,
        "eval": 1.0,
        "data": 1.0,
    }


def test_the_pause_is_sent_whatever_is_nested_in_it() -> None:
    found = PhaseTimes(0)
    reported = []
    for word in (
        "+train",
        "+eval",
        "+forward",
        "-forward",
        "+checkpoint",
        "+data",
        "-checkpoint",
        "-eval",
        "+data",
        "-train",
    ):
        found.accept(0, PhaseMark(enters=word[0] == "+", phase=word[1:]))
        reported.append((found.innermost, found.reported))
    assert reported == [
        *(("train", "train"), ("eval", "eval"), ("forward", "eval"), ("eval", "eval"), ("checkpoint", "checkpoint")),
        *(("data", "checkpoint"), ("eval", "eval"), ("train", "train"), ("data", "data"), ("", "")),
    ]


def test_a_detected_phase_gives_way_to_the_user_s_own() -> None:
    own = times((1, "+backward"), (2, "+backward*"), (4, "-backward*"), (8, "-backward"), end=16)
    assert own == {"other": 1.0 + 8.0, "backward": 7.0}
    late = times((1, "+backward*"), (2, "+backward"), (4, "-backward*"), (8, "-backward"), end=16)
    assert late == {"other": 1.0 + 8.0, "backward": 7.0}
    paused = times((1, "+eval"), (2, "+forward*"), (4, "-forward*"), (8, "-eval"), end=16)
    assert paused == {"other": 1.0 + 8.0, "eval": 7.0}


def test_the_end_of_what_was_found_ends_nothing_else_and_what_is_around_it_ends_it() -> None:
    cut = times((1, "+backward*"), (2, "+eval"), (4, "-backward*"), (8, "-eval"), end=16)
    assert cut == {"other": 1.0 + 8.0, "backward": 1.0, "eval": 6.0}
    around = times((1, "+train"), (2, "+backward*"), (4, "-train"), (8, "-backward*"), end=16)
    assert around == {"other": 1.0 + 12.0, "train": 1.0, "backward": 2.0}


def test_the_seconds_of_pauses_are_those_of_the_steps_that_have_ended() -> None:
    session = a_session()
    began = time.monotonic_ns()
    for second, step in enumerate((0, 1, 2)):
        session.rows.append((began + 10 * second * SECOND, step, {"loss": 1.0}))
        session.rows.append((began + (10 * second + 1) * SECOND, PhaseMark(enters=True, phase="eval"), None))
        session.rows.append((began + (10 * second + 3) * SECOND, PhaseMark(enters=False, phase="eval"), None))
    session.drain(CLOCK)
    assert session.totals.paused == 4.0
    session.rows.append((began + 40 * SECOND, 3, {"loss": 1.0}))
    session.drain(CLOCK)
    assert session.totals.paused == 6.0


def test_so_many_phases_are_distinguished_and_the_rest_is_other() -> None:
    marks = [(float(number), f"{sign}p{number}") for number in range(1, 2 * SESSION_PHASES) for sign in "+-"]
    found = times(*marks, end=2 * SESSION_PHASES)
    assert len(found) == SESSION_PHASES
    assert sum(found.values()) == 2 * SESSION_PHASES


def test_a_phase_is_a_context_a_decorator_and_around_a_coroutine() -> None:
    reported = RecordedMarks()
    phase = Phase(reported, "eval")

    @phase
    def add(one: int, *, other: int) -> int:
        return one + other

    @phase
    async def wait() -> str:
        return "waited"

    with phase, Phase(reported, "data"):
        pass
    assert (add(1, other=2), asyncio.run(wait()), add.__name__) == (3, "waited", "add")
    assert reported.words == ["+eval", "+data", "-data", "-eval", "+eval", "-eval", "+eval", "-eval"]


def test_a_phase_is_entered_and_left_by_hand_and_one_that_ends_by_an_exception_ends() -> None:
    reported = RecordedMarks()
    phase = Phase(reported, "eval")
    phase.__enter__()
    phase.__exit__()
    with pytest.raises(ValueError, match="bad"), Phase(reported, "save"):
        raise ValueError("bad")
    assert reported.words == ["+eval", "-eval", "+save", "-save"]
    assert [mark.failed for mark in reported.marks] == [False, False, False, True]


def test_an_invalid_phase_is_reported_at_once() -> None:
    with pytest.raises(TypeError, match=r"a phase needs a name, as in phase\(\"eval\"\)"):
        trackside.phase(len)  # type: ignore[arg-type]

    def generator() -> Iterator[int]:
        yield 1

    with pytest.raises(TypeError, match="generator function; use the phase inside of it"):
        Phase(RecordedMarks(), "eval")(generator)


class Loader:
    """A loader of two batches, with a sampler."""

    sampler = "sampler"

    def __init__(self) -> None:
        self.batches: list[Any] = [set(), set()]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


def test_a_loader_s_waits_are_sent_as_they_begin_and_end_in_every_epoch() -> None:
    reported, loader = RecordedMarks(), Loader()
    waits = TimedLoader(reported, loader)
    for _ in range(2):
        assert list(waits) == loader.batches
    assert reported.words == ["+data", "-data"] * 8  # the loader's iterator, two batches, the end
    assert [mark.waited is not None for mark in reported.marks if not mark.enters] == [False, True, True, False] * 2
    assert [mark.first for mark in reported.marks if not mark.enters] == [False, True, False, False] * 2
    assert (len(waits), waits.sampler, bool(waits), bool(TimedLoader(reported, iter([])))) == (2, "sampler", True, True)


def test_a_loader_that_fails_raises_as_it_would_alone() -> None:
    def failing() -> Iterator[int]:
        yield 1
        raise RuntimeError("worker died")

    reported = RecordedMarks()
    with pytest.raises(RuntimeError, match="worker died"):
        list(TimedLoader(reported, failing()))
    assert reported.words == ["+data", "-data"] * 3
    with pytest.raises(TypeError, match="not iterable"):
        iter(TimedLoader(reported, 3))  # type: ignore[arg-type]
    assert reported.words == ["+data", "-data"] * 4


def test_the_first_wait_has_the_time_in_which_the_loader_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = count(1)
    monkeypatch.setattr("trackside.totals.phases.monotonic_ns", lambda: next(clock))

    class Starting(Loader):
        def __iter__(self) -> Iterator[Any]:
            assert sum(1 for _ in islice(clock, 1000))
            return super().__iter__()

    reported = RecordedMarks()
    for _ in TimedLoader(reported, Starting()):
        pass
    assert [mark.waited for mark in reported.marks if mark.waited is not None] == [1001 + 1, 1]


def test_an_iterator_has_one_first_batch_however_often_it_is_resumed() -> None:
    reported = RecordedMarks()
    waits = TimedLoader(reported, iter(range(6)))
    assert [list(islice(waits, 2)) for _ in range(3)] == [[0, 1], [2, 3], [4, 5]]
    assert [mark.first for mark in reported.marks if mark.waited is not None] == [True, *[False] * 5]


def test_a_batch_that_the_training_has_let_go_of_is_freed() -> None:
    class Batch:
        pass

    for batch in TimedLoader(RecordedMarks(), (Batch() for _ in range(1))):
        seen = weakref.ref(batch)
        del batch
        gc.collect()
        assert seen() is None


def test_a_long_wait_is_data_though_the_sender_reckons_meanwhile() -> None:
    session = a_session()
    began = time.monotonic_ns()
    session.rows.append((began + SECOND, PhaseMark(enters=True, phase="data"), None))
    for second in (2, 3, 4):
        session.drain(later((began - CLOCK.monotonic) / SECOND + second))
    waited = PhaseMark(enters=False, phase="data", waited=4 * SECOND)
    session.rows.append((began + 5 * SECOND, waited, None))
    first = PhaseMark(enters=False, phase="data", waited=SECOND, first=True)
    session.rows.append((began + 5 * SECOND, first, None))
    session.rows.append((began + 6 * SECOND, 1, {"loss": 1.0}))
    session.drain(later((began - CLOCK.monotonic) / SECOND + 6))
    assert session.totals.phases == pytest.approx({"other": 2.0, "data": 4.0}, abs=0.1)
    waits = session.totals.data_wait
    assert waits is not None
    assert waits.first is not None
    assert (waits.sum, sum(waits.counts), waits.first.sum, sum(waits.first.counts)) == (4.0, 1, 1.0, 1)


def test_evaluation_is_no_part_of_a_step_and_the_beat_names_the_phase_that_goes_on() -> None:
    session = a_session()
    began = time.monotonic_ns()
    for second, what in (
        (0, {"loss": 1.0}),
        (1, PhaseMark(enters=True, phase="eval")),
        (2, PhaseMark(enters=True, phase="data")),
        (8, PhaseMark(enters=False, phase="data")),
        (9, PhaseMark(enters=False, phase="eval")),
    ):
        moment = began + second * SECOND
        row: Any = (moment, second, what) if isinstance(what, dict) else (moment, what, None)
        session.rows.append(row)
    session.rows.append((began + 10 * SECOND, 1, {"loss": 1.0}))
    session.rows.append((began + 11 * SECOND, PhaseMark(enters=True, phase="checkpoint"), None))
    session.drain(CLOCK)
    assert session.totals.step_duration is not None
    assert session.totals.step_duration.sum == 2.0
    beat = decode_body("beat", session.beat(CLOCK)[2])
    assert beat.phase == "checkpoint"
    assert beat.totals.paused == session.totals.paused == 8.0
    assert {"eval", "data", "checkpoint", "other"} == beat.totals.phases.keys()


@pytest.mark.usefixtures("quiet")
def test_phases_of_other_threads_count_nothing_and_are_warned_about_once(
    run: trackside.Run, caplog: pytest.LogCaptureFixture
) -> None:
    def save() -> None:
        for _ in range(2):
            with run.phase("checkpoint"):
                pass

    thread = threading.Thread(target=save)
    thread.start()
    thread.join()
    run.finish()
    assert run.queue.session.totals.phases == {}
    (record,) = caplog.records
    assert "phase checkpoint: entered in a thread that did not open the run" in record.getMessage()


def test_the_end_of_a_phase_opens_no_run(nowhere: str, monkeypatch: pytest.MonkeyPatch, process: ProcessState) -> None:
    monkeypatch.setenv("TRACKSIDE_ENDPOINT", nowhere)

    @trackside.phase("train")
    def main() -> None:
        trackside.push(loss=0.5)
        trackside.finish()

    main()
    assert (process.default, process.queues) == (None, set())
