"""What all ranks have told in parts becomes one norm, when the last has told its own."""

from __future__ import annotations

from math import isnan, nan
from typing import TYPE_CHECKING, Any

from wire_messages import Speaker, moment, pushed

from trackside.wire import Pushes
from trackside_daemon.history.record.trimming import Bounds
from trackside_daemon.history.recorder import Recorder
from trackside_daemon.ingest.sessions import Sessions
from trackside_daemon.model.records import BatchIngested
from trackside_daemon.training.limits import Limits
from trackside_daemon.training.runs import Runs
from trackside_daemon.training.whole_norms import WAITING, Wholes

if TYPE_CHECKING:
    from pathlib import Path

    from trackside.wire import Block

KEY = "grad_norm_local_squared"


def parts(*rows: tuple[int, float], rank: int = 0) -> list[Block]:
    """Steps and sums of squares, a millisecond apart and of each rank at its own time."""
    return [pushed([KEY, "loss"], *((rank + step / 1000, step, (squared, 1.0)) for step, squared in rows))]


def told(made: dict[bytes, list[Block]]) -> dict[bytes, dict[int, float]]:
    """Norms by session and step."""
    found = {}
    for session, blocks in made.items():
        ((steps, _, values),) = [block.columns() for block in blocks]
        found[session] = dict(zip(steps, values, strict=True))
    return found


def test_a_step_is_whole_when_every_rank_has_told_it_in_whatever_order_and_pace() -> None:
    wholes = Wholes(2)
    assert wholes.take(b"a", 0, parts((0, 9.0), (1, 1.0), (2, 5.0))) == {}
    assert wholes.take(b"a", 0, parts((0, 9.0))) == {}  # it comes again
    made = wholes.take(b"b", 1, parts((2, 4.0), (0, 16.0), rank=7))
    assert told(made) == {b"a": {2: 3.0, 0: 5.0}, b"b": {2: 3.0, 0: 5.0}}
    times = {session: list(blocks[0].columns()[1]) for session, blocks in made.items()}
    assert times[b"b"][0] - times[b"a"][0] == 7_000_000_000
    (norm,) = told(wholes.take(b"b", 1, parts((1, nan))))[b"a"].values()
    assert isnan(norm)


def test_a_norm_that_a_rank_pushes_itself_is_not_made_and_what_waits_is_bounded() -> None:
    wholes = Wholes(2)
    wholes.take(b"a", 0, parts(*((step, 1.0) for step in range(WAITING))))
    assert told(wholes.take(b"b", 1, parts((0, 1.0), (WAITING - 1, 3.0)))) == {
        session: {WAITING - 1: 2.0} for session in (b"a", b"b")
    }
    wholes.take(b"a", 0, [pushed(["grad_norm"], (0.0, 1, (2.0,)))])
    assert wholes.take(b"b", 1, parts((WAITING - 2, 3.0))) == {}


def test_the_norm_is_kept_and_shown_as_if_every_rank_had_pushed_it(tmp_path: Path) -> None:
    sessions = Sessions(Runs(Limits(), 60.0))
    who = [Speaker(rank=rank, world=2) for rank in range(2)]
    history = Recorder(tmp_path, Bounds(0))
    history.start()
    batches: list[Any] = []
    for one in who:
        batches += sessions.receive(b"", one.frames("hello", one.hello()), moment())[1]
    for one, squared in zip(who, (9.0, 16.0), strict=True):
        body = Pushes(one.hello().clock, one.totals, parts((3, squared)))
        batches += sessions.receive(b"", one.frames("batch", body, 1), moment())[1]
    shown = [
        sample for batch in batches for sample in batch.samples if sample.metric.name == "trackside_training_grad_norm"
    ]
    assert [(sample.labels[1], sample.value) for sample in shown] == [("0", 5.0), ("1", 5.0)]
    added = [one for batch in batches for one in batch.records if isinstance(one, BatchIngested) and not one.number]
    assert [one.session for one in added] == [one.id for one in who]
    for batch in batches:
        history.accept(batch)
    assert history.writer.flush(60)
    with history.database.reading() as connection:
        (rows,) = connection.execute("SELECT count(*) FROM log").fetchone()
        committed = connection.execute("SELECT committed FROM session").fetchall()
    history.stop()
    history.close()
    assert rows == 4
    assert committed == [(1,), (1,)]
