"""The goodput of live runs on the page, read from the history by a thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from diagnosis.simulated_job import Job, SimulatedJob
from in_process_daemon import InProcessDaemon
from processes import eventually

from trackside_daemon.diagnosis.accounts import goodput_batch, read_goodput, read_run
from trackside_daemon.model.families import training as f
from trackside_daemon.model.metric import Batch, Sample
from trackside_daemon.model.state import State
from trackside_daemon.service.run_readings import RunReadings

if TYPE_CHECKING:
    from pathlib import Path

    from trackside_daemon.history.read.series import Readable


def page(*ranks: int) -> State:
    state = State()
    info = tuple({"run": "job", "run_id": "job"}.get(name, "") for name in f.RUN_INFO.labels)
    started = [Sample(f.STARTED, ("job", str(rank)), 1.0) for rank in ranks]
    state.update(Batch("training", [Sample(f.RUN_INFO, info, 1.0), *started]))
    return state


def test_each_rank_on_the_page_has_the_goodput_that_show_has(tmp_path: Path) -> None:
    daemon = InProcessDaemon(tmp_path)
    SimulatedJob(Job(steps=60, ranks=2), daemon).run()
    daemon.history.writer.call(lambda _: None).result(60)
    with daemon.history.database.reading() as connection:
        goodput = read_run(connection, "job")["goodput"]
    readings = RunReadings(daemon.history.database, read_goodput)

    def shares(*ranks: int) -> dict[str, object]:
        batch = goodput_batch(page(*ranks), 0.0, readings, readings.read_at)
        return {sample.labels[1]: sample.value for sample in batch.samples}

    both = eventually(lambda: shares(0, 1, 2))
    assert list(both) == ["0", "1"], "nothing is known of rank 2"
    assert sum(map(float, both.values())) / 2 == pytest.approx(goodput)  # type: ignore[arg-type]
    assert list(shares(1)) == ["1"]
    daemon.close()


@pytest.mark.parametrize(("every", "again"), [(0.0, True), (1e9, False)])
def test_a_run_is_read_again_when_that_is_due(tmp_path: Path, every: float, again: bool) -> None:
    daemon = InProcessDaemon(tmp_path)
    database: Readable = daemon.history.database
    found = iter(range(1, 1000))
    readings = RunReadings(database, lambda *_: next(found), every)
    first = eventually(lambda: readings("a"))
    other = eventually(lambda: readings("b"))
    assert eventually(lambda: (readings("b") or 0) > (other or 0) if again else readings("a") == first)
    daemon.close()


def test_a_run_that_cannot_be_read_delays_no_other_one(tmp_path: Path) -> None:
    daemon = InProcessDaemon(tmp_path)
    readings = RunReadings(daemon.history.database, lambda _, uid: {"good": 1}[uid])
    assert eventually(
        lambda: [
            readings(uid) for uid in sorted(("bad", "good"), key=lambda uid: readings.read_at.get(uid, 0.0))
        ].count(1)
    )
    daemon.close()
