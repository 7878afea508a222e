"""Resumes of a real small training: what continues is left alone, and the planted fault is named."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
import torch
from checkpoints.resumed_trainings import FAULTS, KEYS, Row, interrupted
from histories import BEGIN, History, finished, history, opened, session
from session_records import batch_ingested

from trackside.packing import pack
from trackside.wire import Block
from trackside_daemon.checkpoints.continuity import TrainingQuantity, judge
from trackside_daemon.checkpoints.resumes import PATIENCE_SECONDS, Resumes
from trackside_daemon.diagnosis.diagnosis import diagnose
from trackside_daemon.diagnosis.settings import CostSection
from trackside_daemon.documents import text
from trackside_daemon.documents.diagnosis import lines
from trackside_daemon.documents.run import document
from trackside_daemon.history.read import reader
from trackside_daemon.model.metric import Batch
from trackside_daemon.model.records import CONTINUITY, Event

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from trackside_daemon.model.finding import Finding
    from trackside_daemon.model.records import Record

STEP_SECONDS = 0.5
LOSS = ["train/loss"]


class Judging:
    """A history, and the part of the daemon that judges resumes in it."""

    def __init__(self, kept: History) -> None:
        self.kept = kept
        self.now = 0.0
        self.findings: list[Finding] = []
        self.begun: Counter[tuple[str, int]] = Counter()
        self.restart()

    def restart(self) -> None:
        """Replace the daemon's part by a new one."""
        self.resumes = Resumes(
            self.kept.database,
            lambda: self.kept.writer.call(lambda _: None).result(60),
            lambda batch: self.kept.put(batch.records),
            clock=lambda: self.now,
            wall=lambda: BEGIN + 5000,
        )

    def attempt(self, run: str, number: int, rows: Sequence[Row], end: str = "", keys: Sequence[str] = KEYS) -> None:
        """Open an attempt, or go on with it, and push its next steps."""
        if not self.begun[run, number]:
            self.accept(opened(run, attempt=number))
            self.begun[run, number] = rows[0][0]
        begin = BEGIN + 1000 * number - STEP_SECONDS * self.begun[run, number]
        steps = [step for step, _ in rows]
        times = pack("q", [round((begin + STEP_SECONDS * step) * 1e9) for step in steps])
        values = pack("d", [value for _, row in rows for value in row[: len(keys)]])
        block = Block(list(keys), pack("q", steps), times, values)
        self.accept(batch_ingested(session(run, number), steps[0], [block]))
        if end:
            self.accept(finished(run, attempt=number, state=end, after=STEP_SECONDS * len(rows)))

    def accept(self, *records: Record) -> None:
        """Write records to the history, and pass them on."""
        self.kept.put(records)
        self.findings += self.resumes.accept(Batch("x", records=list(records)))

    def verdicts(self, run: str) -> list[dict[str, Any]]:
        """Judge what is due, and return the verdicts so far."""
        self.resumes.tick()
        self.accept()
        with self.kept.database.reading() as connection:
            return [event["fields"] for event in reader.events(connection, run) if event["kind"] == CONTINUITY]

    def names(self) -> list[str]:
        """Return the names of the findings."""
        return [one.alert for one in self.findings]


@pytest.fixture
def judging(tmp_path: Path) -> Iterator[Judging]:
    """An empty history."""
    with history(tmp_path / "history") as kept:
        yield Judging(kept)


def test_the_fault_of_a_resume_is_named_and_a_right_one_is_left_alone(
    judging: Judging, count: Callable[[int, int], int]
) -> None:
    """A single training is resumed with each fault; of ten, each with two of the four."""
    trainings = count(1, 10)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    found: Counter[tuple[str, str]] = Counter()
    alerts: Counter[str] = Counter()
    try:
        for seed in range(trainings):
            before = interrupted(seed)
            planted = FAULTS if trainings == 1 else FAULTS[seed % 2 :: 2]
            for fault in ("", *planted):
                run = f"{seed:03}{fault[:4]}"
                judging.attempt(run, 0, before.rows, "failed")
                judging.attempt(run, 1, before.resume(fault))
                (verdict,) = judging.verdicts(run)
                found[fault, verdict["cause"]] += 1
                alerts[fault] += judging.names().count("LossDiscontinuity")
                assert judging.names().count("RunRestarted") == 1
                assert (verdict["step"], verdict["reached"]) == (before.saved, len(before.rows))
                judging.findings.clear()
    finally:
        torch.set_num_threads(threads)
    right = sum(number for (fault, cause), number in found.items() if bool(fault) == bool(cause))
    named = sum(number for (fault, cause), number in found.items() if fault == cause)
    assert found.total() == (5 if trainings == 1 else 30)
    assert right >= found.total() * 28 / 30, found
    assert named >= found.total() * 22 / 30, found
    assert alerts[""] == 0


ROWS: list[Row] = [(step, (4.0 / step**0.3 + 0.1 * ((step * 7919) % 13 - 6) / 6,)) for step in range(1, 401)]
"""A loss that falls in noise."""


def lifted(rows: Sequence[Row], factor: float) -> list[Row]:
    """Return rows with other values."""
    return [(step, tuple(factor * value for value in values)) for step, values in rows]


def test_the_verdict_names_what_is_done_twice_and_is_given_once(judging: Judging) -> None:
    judging.attempt("run", 0, ROWS[:360], "failed", keys=LOSS)
    judging.attempt("run", 1, ROWS[299:304], keys=LOSS)
    assert judging.verdicts("run") == []  # too early
    judging.attempt("run", 1, ROWS[304:350], keys=LOSS)
    (verdict,) = judging.verdicts("run")
    assert verdict["text"].startswith(
        "attempt 1 goes on after step 299 of 360, 13 min 40 s after the last step, so that 61 steps (30.5 s) are done again; "
        "loss continues as before"
    )
    assert (verdict["repeated_steps"], verdict["repeated_seconds"], verdict["continues"]) == (61, 30.5, True)
    assert judging.names() == ["RunRestarted"]
    judging.restart()
    judging.accept(opened("run", attempt=1))
    judging.accept(finished("run", attempt=1))
    assert judging.verdicts("run") == [verdict]
    assert judging.names() == ["RunRestarted"]


def test_a_loss_that_is_higher_raises_an_alert_and_is_in_why_and_show(judging: Judging) -> None:
    """The loss is 59 % above the last one."""
    judging.attempt("run", 0, ROWS[:360], "failed", keys=LOSS)
    judging.attempt("run", 1, lifted(ROWS[360:], 1.59), "failed", keys=LOSS)
    (verdict,) = judging.verdicts("run")
    assert verdict["cause"] == "unknown"
    assert "the weights, the data or the settings are others (loss 0.6" in verdict["text"]
    assert judging.names() == ["RunRestarted", "LossDiscontinuity"]
    assert judging.findings[1].summary.startswith("run run does not continue where it was: the weights")
    with judging.kept.database.reading() as connection:
        found = diagnose(connection, "run", CostSection())
    assert found["resumes"], found["causes"]


def test_a_restart_by_trackside_run_has_its_cause_and_what_it_has_saved(judging: Judging) -> None:
    judging.attempt("run", 0, ROWS[:40], "failed", keys=LOSS)
    judging.attempt("run", 1, ROWS[:1], keys=LOSS)
    judging.accept(Event("run", 1, BEGIN + 1000, "restart", rank=0, fields={"cause": "KeyError: 'x', at step 40"}))
    judging.attempt("run", 1, ROWS[1:60], "finished", keys=LOSS)
    (verdict,) = judging.verdicts("run")
    assert verdict["text"].startswith(
        "attempt 1 begins again at step 1 of 40, 16 min 20 s after the last step, so that 40 steps (19.5 s) are done again; "
        "`trackside run` restarted it after KeyError: 'x', at step 40; "
    )
    with judging.kept.database.reading() as connection:
        found = diagnose(connection, "run", CostSection())
    assert found["restarted_since"] > 0
    assert "\nwithout restarts: it would have ended, or stood still, " in "\n".join(lines(found))


def test_few_steps_are_judged_when_the_attempt_ends_or_has_had_its_time(judging: Judging) -> None:
    judging.attempt("run", 0, ROWS[:360], "failed", keys=LOSS)
    judging.attempt("run", 1, ROWS[360:363], "failed", keys=LOSS)
    (verdict,) = judging.verdicts("run")
    assert verdict["text"].endswith("; too few steps to judge it")
    assert verdict["continues"] is None
    judging.attempt("run", 2, ROWS[363:380], keys=LOSS)
    assert len(judging.verdicts("run")) == 1
    judging.now += PATIENCE_SECONDS + 1
    judging.attempt("run", 2, ROWS[380:382], keys=LOSS)
    assert [one["continues"] for one in judging.verdicts("run")] == [None, True]
    judging.attempt("other", 1, ROWS[:40], keys=LOSS)  # its first attempt is unknown
    for attempt in (0, 1):
        judging.accept(opened("none", attempt=attempt), finished("none", attempt=attempt))
    assert judging.verdicts("other") == judging.verdicts("none") == []


def values(rows: Sequence[Row]) -> dict[int, float]:
    """Return the first value of each row by step."""
    return {step: row[0] for step, row in rows}


@pytest.mark.parametrize(
    ("after", "step", "cause"),
    [
        (ROWS[320:360], 320, ""),
        (lifted(ROWS[320:360], 1.3), 320, "optimizer"),  # the same batches
        (lifted(ROWS[360:], 0.6), 360, "data"),
        (lifted(ROWS[360:], 1.3), 360, "unknown"),
        ([(step + 360, row) for step, row in ROWS[:40]], 360, "weights"),
        (ROWS[:40], 0, "anew"),
    ],
)
def test_causes_by_their_pattern(after: list[Row], step: int, cause: str) -> None:
    before = values(ROWS[:360])
    verdict = judge({"loss": TrainingQuantity(before, values(after), list(before.values())[:8])}, step, 1)
    assert verdict is not None
    assert verdict.cause == cause, verdict
    assert verdict.alert == (cause not in {"", "anew"})


def test_values_near_the_limits_of_floats_cost_only_their_verdict(judging: Judging) -> None:
    for number, begin in enumerate((0, 40)):
        judging.attempt("run", number, [(step, (1e308,)) for step in range(begin, begin + 40)], "failed", LOSS)
    assert judging.verdicts("run") == []


def test_slow_first_steps_are_a_warm_up() -> None:
    loss = TrainingQuantity(values(ROWS[:360]), values(ROWS[360:]), [2.5])
    before = {after: 0.1 + 0.001 * (after % 5) for (_, _), (after, _) in pairwise(ROWS[:360])}
    for durations, words in (
        (dict.fromkeys(range(361, 401), 0.1) | {361: 2.0, 362: 0.9}, "only the first steps were slow"),
        (dict.fromkeys(range(361, 401), 0.2), "slower"),
        (dict.fromkeys(range(361, 401), 0.1), ""),
    ):
        verdict = judge({"loss": loss, "duration": TrainingQuantity(before, durations)}, 360, 1)
        assert verdict is not None
        assert not verdict.cause
        assert words in verdict.text


def test_events_of_the_training_s_own_are_no_verdict_and_no_model(judging: Judging) -> None:
    modules = [["head", "Linear", 6, "float32", "cpu"]]
    model = {"class": "Net", "parameters": 6, "trainable": 6, "bytes": 24, "modules": modules}
    fields: list[tuple[str, dict[str, Any]]] = [
        ("model", model),
        ("model", {"parameters": "many"}),
        ("model", {**model, "modules": 7}),
        ("continuity", {"text": ["x"]}),
    ]
    judging.attempt("run", 0, ROWS[:360], "failed", keys=LOSS)
    judging.accept(*[Event("run", 1, BEGIN, kind, 0, None, one) for kind, one in fields])
    judging.attempt("run", 1, ROWS[360:], "failed", keys=LOSS)
    judging.verdicts("run")
    with judging.kept.database.reading() as connection:
        page = reader.run(connection, "run")
    assert json.loads(json.dumps(page["model"])) == model
    assert [one["continues"] for one in page["resumes"]] == [True]
    printed = "\n".join(text.write(document({**page, "alerts": []}, [], None, BEGIN + 3000)))
    assert "Net: 6 parameters, 24 B" in printed
    assert "attempt 1 goes on after step 360" in printed
