"""Norm of a sharded model: the parts from all ranks become one norm when the last rank has reported its part."""

from __future__ import annotations

from math import isnan, nan
from typing import TYPE_CHECKING, Any

from wire_messages import FakeSession, moment, pushed

from trackside.wire import Identity, Pushes
from trackside_daemon.history.record.trimming import Bounds
from trackside_daemon.history.recorder import HistoryRecorder
from trackside_daemon.ingest.client_sessions import ClientSessions
from trackside_daemon.ingest.connection import Connection
from trackside_daemon.model.columns import decode
from trackside_daemon.model.records import BatchIngested
from trackside_daemon.training.admission import PageLimits
from trackside_daemon.training.rank import RankStatus
from trackside_daemon.training.run import RankSession, RunStatus
from trackside_daemon.training.runs import Runs
from trackside_daemon.training.whole_norms import WAITING, WholeNorms

if TYPE_CHECKING:
    from pathlib import Path

    from trackside_daemon.model.columns import Columns

KEY = "grad_norm_local_squared"
IDENTITY = Identity("id-1", "train", world=2)
RUN = RunStatus(IDENTITY, "train", 0)
FIRST, SECOND = (RankSession(RUN, RankStatus("train", rank, lambda *_: True), IDENTITY) for rank in range(2))


def parts(*rows: tuple[int, float], rank: int = 0) -> list[Columns]:
    """Return steps and sums of squares, a millisecond apart and at a different time for each rank."""
    return decode([pushed([KEY, "loss"], *((rank + step / 1000, step, (squared, 1.0)) for step, squared in rows))])


def norms_by_session(made: dict[RankSession, list[Columns]]) -> dict[RankSession, dict[int, float]]:
    """Return the norms by session and step."""
    found = {}
    for session, blocks in made.items():
        ((_, steps, _, values, _),) = blocks
        found[session] = dict(zip(steps, values, strict=True))
    return found


def test_a_step_is_whole_when_every_rank_has_sent_it_in_whatever_order_and_pace() -> None:
    norms: WholeNorms[RankSession] = WholeNorms(2)
    assert norms.add(FIRST, 0, parts((0, 9.0), (1, 1.0), (2, 5.0))) == {}
    assert norms.add(FIRST, 0, parts((0, 9.0))) == {}  # it comes again
    made = norms.add(SECOND, 1, parts((2, 4.0), (0, 16.0), rank=7))
    assert norms_by_session(made) == {FIRST: {2: 3.0, 0: 5.0}, SECOND: {2: 3.0, 0: 5.0}}
    times = {session: list(blocks[0].times) for session, blocks in made.items()}
    assert times[SECOND][0] - times[FIRST][0] == 7_000_000_000
    (norm,) = norms_by_session(norms.add(SECOND, 1, parts((1, nan))))[FIRST].values()
    assert isnan(norm)


def test_a_norm_that_a_rank_pushes_itself_is_not_made_and_what_waits_is_bounded() -> None:
    norms: WholeNorms[RankSession] = WholeNorms(2)
    norms.add(FIRST, 0, parts(*((step, 1.0) for step in range(WAITING))))
    assert norms_by_session(norms.add(SECOND, 1, parts((0, 1.0), (WAITING - 1, 3.0)))) == {
        session: {WAITING - 1: 2.0} for session in (FIRST, SECOND)
    }
    norms.add(FIRST, 0, decode([pushed(["grad_norm"], (0.0, 1, (2.0,)))]))
    assert norms.add(SECOND, 1, parts((WAITING - 2, 3.0))) == {}


def test_the_norm_is_stored_and_shown_as_if_every_rank_had_pushed_it(tmp_path: Path) -> None:
    sessions = ClientSessions(Runs(PageLimits(), 60.0))
    ranks = [FakeSession(rank=rank, world=2) for rank in range(2)]
    history = HistoryRecorder(tmp_path, Bounds(0))
    history.start()
    batches: list[Any] = []
    for one in ranks:
        batches += sessions.receive(Connection(b""), one.frames("hello", one.hello()), moment()).batches
    for one, squared in zip(ranks, (9.0, 16.0), strict=True):
        body = Pushes(one.hello().clock, one.totals, [columns.block() for columns in parts((3, squared))])
        batches += sessions.receive(Connection(b""), one.frames("batch", body, 1), moment()).batches
    shown = [
        sample for batch in batches for sample in batch.samples if sample.metric.name == "trackside_training_grad_norm"
    ]
    assert [(sample.labels[1], sample.value) for sample in shown] == [("0", 5.0), ("1", 5.0)]
    added = [one for batch in batches for one in batch.records if isinstance(one, BatchIngested) and not one.number]
    assert [one.session.id for one in added] == [one.id for one in ranks]
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
