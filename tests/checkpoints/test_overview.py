"""The value of a checkpoint is that of the last sample at or before its step, of the attempt that wrote it."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from histories import BEGIN, finished, history, opened, session
from session_records import batch_ingested

from trackside.packing import pack
from trackside.wire import Block
from trackside_daemon.checkpoints.overview import best, overview
from trackside_daemon.model.checkpoint import Checkpoint

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from histories import History

    from trackside_daemon.model.records import Record

Sample = tuple[int, float, float]
"""Step, seconds after `BEGIN`, value."""


def pushed(samples: Sequence[Sample], *, key: str = "loss", attempt: int = 0, rank: int = 0) -> list[Record]:
    """Return the opening of a session, and its samples."""
    steps, seconds, values = zip(*samples, strict=True)
    times = pack("q", [round((BEGIN + second) * 1e9) for second in seconds])
    column = Block([key], pack("q", steps), times, pack("d", values))
    return [opened("run", attempt=attempt, rank=rank), batch_ingested(session("run", attempt, rank), 1, [column])]


def wrote(step: int, second: float, *, attempt: int = 0, found: str = "event") -> Checkpoint:
    """Return a checkpoint of a step, written so many seconds after `BEGIN`."""
    path = f"/runs/{attempt}-{second}-{step}"
    return Checkpoint("run", path, attempt, BEGIN + second, found, "complete", step, checked=BEGIN)


def values(one: History, metric: str = "") -> list[Any]:
    """Return the values of the checkpoints."""
    with one.database.reading() as connection:
        return [each["value"] for each in overview(connection, "run", metric)["checkpoints"]]


def twice(one: History) -> list[Any]:
    """Return the values as they are live and once all is packed, which have to be the same."""
    live = values(one)
    pack_all(one)
    assert values(one) == live
    return live


def pack_all(one: History) -> None:
    """Let all samples be packed, as at the end of the attempts."""
    one.put([finished("run", attempt=attempt) for attempt in (0, 1)])
    one.wait_until_packed()
    with one.database.reading() as connection:
        assert connection.execute("SELECT count(*) FROM log").fetchone() == (0,)


def test_one_that_was_not_read_before_the_end_is_not_being_written(tmp_path: Path) -> None:
    with history(tmp_path) as one:
        one.put([opened("run"), replace(wrote(9, 5.0), state="writing", checked=None)])
        states = []
        for _ in range(2):
            with one.database.reading() as connection:
                states += [each["state"] for each in overview(connection, "run")["checkpoints"]]
            one.put([finished("run")])
    assert states == ["writing", "unread"]


@pytest.mark.parametrize("scale", [1, 40, 4000])
def test_no_value_is_of_a_later_step(tmp_path: Path, scale: int) -> None:
    """The loss rises after the first checkpoint and falls after the second."""
    losses = [1.0] * (3 * scale + 1) + [3.0] * (3 * scale) + [0.2] * (6 * scale)
    samples = [(step, step / 10, loss) for step, loss in enumerate(losses)]
    with history(tmp_path) as one:
        one.put([*pushed(samples), *(wrote(at * scale, at * scale / 10 + 0.05) for at in (3, 6, 9))])
        assert twice(one) == [1.0, 3.0, 0.2]
        with one.database.reading() as connection:
            listed = overview(connection, "run")["checkpoints"][:2]
        assert best(listed) == listed[0]


def test_the_attempt_that_wrote_it_counts_not_another_that_made_the_same_steps(tmp_path: Path) -> None:
    first = [(step, step, 1000.0 + step) for step in range(1, 501)]
    second = [(step, 1000.0 + step, 2000.0 + step) for step in range(301, 701)]
    with history(tmp_path) as one:
        records = [wrote(300, 300.5), wrote(450, 450.5), wrote(450, 1450.5, attempt=1), wrote(600, 1600.5, attempt=1)]
        one.put([*pushed(first), *pushed(second, attempt=1), *records])
        assert twice(one) == [1300.0, 1450.0, 2450.0, 2600.0]


def test_steps_that_are_made_again_after_going_back_have_the_values_of_their_time(tmp_path: Path) -> None:
    passes = [*range(1, 5001), *range(1001, 4001), *range(501, 900)]
    samples = [(step, place, float(place)) for place, step in enumerate(passes)]
    checkpoints = [wrote(2000, 1999.5), wrote(4500, 4499.5), wrote(2000, 5999.5), wrote(800, 8299.5)]
    with history(tmp_path) as one:
        one.put([*pushed(samples), *checkpoints])
        assert twice(one) == [1999.0, 4499.0, 5999.0, 8299.0]


def test_what_is_pushed_of_a_step_after_its_checkpoint_counts(tmp_path: Path) -> None:
    samples = [(step, step + 0.2, float(step)) for step in range(1, 9000)]
    with history(tmp_path) as one:
        # The last is found by a scan: written before the attempt began, and so by another one.
        one.put(
            [*pushed(samples), *(wrote(step, step) for step in (1, 4096, 4097, 8000)), wrote(5, -1, found="directory")]
        )
        assert twice(one) == [None, 1.0, 4096.0, 4097.0, 8000.0]


def test_a_key_that_only_another_rank_pushes_has_values(tmp_path: Path) -> None:
    """The last stage of a pipeline has the loss."""
    samples = [(step, step, float(step)) for step in range(100)]
    with history(tmp_path) as one:
        one.put([*pushed(samples, key="grad_norm"), *pushed(samples, rank=3), wrote(50, 50.5), wrote(60, 60.5)])
        assert twice(one) == [50.0, 60.0]


def test_of_trimmed_samples_the_last_that_is_left_before_the_step_counts(tmp_path: Path) -> None:
    samples = [(step, step, float(step)) for step in range(10_000)]
    with history(tmp_path) as one:
        one.put([*pushed(samples), wrote(1000, 1000.5), wrote(9999, 9999.5)])
        pack_all(one)
        one.writer.call(lambda store: store.connection.execute("UPDATE block SET data = NULL") and None).result(60)
        assert values(one) == [1000 // 64 * 64 - 1, 9999.0]


@pytest.mark.parametrize("seed", range(8))
def test_values_are_those_of_a_search_through_all_samples(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    samples: list[Sample] = []
    step = 0
    for place in range(chance.choice((50, 5000, 20_000))):
        step = chance.randrange(step) if step and chance.random() < 0.0005 else step + chance.choice((0, 1, 1, 5))
        samples.append((step, place, float(place)))
    places = sorted(chance.sample(range(len(samples)), 30))
    checkpoints = [wrote(samples[place][0], place + 0.5) for place in places]
    with history(tmp_path) as one:
        one.put([*pushed(samples), *checkpoints])
        assert twice(one) == [last_of_its_step(samples, place) for place in places]


def last_of_its_step(samples: Sequence[Sample], place: int) -> float:
    """Return the value of the last sample of the step at a place, before another step."""
    while place + 1 < len(samples) and samples[place + 1][0] == samples[place][0]:
        place += 1
    return samples[place][2]
