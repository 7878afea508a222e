"""Past samples for detectors after a restart: the latest steps of live ranks, from a real history."""

from __future__ import annotations

from typing import TYPE_CHECKING

from histories import BEGIN, History
from layer_frames import frame, normal
from session_records import batch_ingested, session_opened

from trackside.packing import pack
from trackside.wire import Block, Clock, Hello, Identity, ProcessInfo, Totals
from trackside_daemon.alerts.rank_restoring import MOST_FRAMES, MOST_STEPS, STEPS, PastRanks
from trackside_daemon.detectors.key_roles import KeyRoles
from trackside_daemon.detectors.rank_watch import RankWatch
from trackside_daemon.model.metric import Batch
from trackside_daemon.model.records import Alert, BatchIngested, RunState, SessionOpened

if TYPE_CHECKING:
    from pathlib import Path

    from trackside_daemon.detectors.base import Past

SHIFT = int(BEGIN * 1e9)


def train(
    history: History, run: str, rank: int, steps: int, size: int = 1000, *, about: ProcessInfo | None = None
) -> None:
    """Record a rank that pushes a loss, a norm and a key without detectors, one step per second."""
    session = run.encode() + bytes([rank])
    hello = Hello(Identity(run, f"name-{run}", rank=rank, world=2), Clock(SHIFT, 0), SHIFT, Totals(), about=about)
    records: list[SessionOpened | BatchIngested] = [session_opened(session, hello, f"name-{run}", 0, BEGIN)]
    for number, first in enumerate(range(0, steps, size)):
        some = range(first, min(first + size, steps))
        values = [value for step in some for value in (float(step), step / 2, 7.0)]
        block = Block(
            ["loss", "grad_norm", "x"], pack("q", some), pack("q", [step * 10**9 for step in some]), pack("d", values)
        )
        records.append(batch_ingested(session, number + 1, [block], SHIFT))
    history.put(records)


def every(ranks: PastRanks) -> list[Past]:
    return list(iter(ranks.next, None))


def test_the_latest_steps_of_live_ranks_are_read(tmp_path: Path) -> None:
    history = History(tmp_path)
    train(history, "over", 0, 10)
    history.put([RunState("over", 0, "finished", "", BEGIN + 10)])
    train(history, "live", 1, 10)
    train(history, "live", 0, 9500)
    history.wait_until_packed()
    train(history, "fresh", 0, 600)
    found = every(PastRanks(history.database))
    assert [(one.identity.run, one.identity.name, one.identity.rank, one.identity.world) for one in found] == [
        ("fresh", "name-fresh", 0, 2),
        ("live", "name-live", 0, 2),
        ("live", "name-live", 1, 2),
    ]
    (together,) = found[1].columns
    assert set(together) == {"loss", "grad_norm"}
    steps, times, values = together["loss"]
    assert [*steps] == [*range(9500 - MOST_STEPS, 9500)]
    assert [*values] == [float(step) for step in steps]
    assert times[-1] == BEGIN + 9499
    assert found[1].pushes[-1] == (BEGIN + 9499, 9499)
    assert len(found[0].pushes) == 600
    history.close()


def test_many_ranks_have_fewer_steps_each(tmp_path: Path) -> None:
    history = History(tmp_path)
    for rank in range(2):
        train(history, "live", rank, 600)
    for steps, each in ((2 * STEPS, STEPS), (1000, 500), (10, STEPS)):
        assert {len(one.pushes) for one in every(PastRanks(history.database, all_steps=steps))} == {each}
    history.close()


def test_alerts_of_layers_continue_from_the_last_measurements_and_end_when_they_are_over(tmp_path: Path) -> None:
    history = History(tmp_path)
    train(history, "live", 0, 400)

    def measured(step: int, *, dead: bool) -> BatchIngested:
        layers = {"embed": normal(step), "head": [0.0] * 100 if dead else normal(step)}
        return batch_ingested(b"live\0", 2 + step, shift=SHIFT, distributions=[frame(step, layers, "gradients")])

    history.put([measured(step, dead=step >= 40) for step in range(0, 400, 4)])
    (past,) = every(PastRanks(history.database))
    history.close()
    assert [one.step for one in past.layers] == [*range(400 - 4 * MOST_FRAMES, 400, 4)]
    labels = {"key": "head", "rank": "0", "run": "name-live"}
    kept = Alert("DeadLayer", "warning", BEGIN + 48, "live", labels, "all of its gradients are zero since step 40")
    watch = RankWatch()
    watch.restore_rank(past, [kept])
    (again,) = watch.accept(Batch("ingest"))
    assert (again.alert, again.time, again.summary, again.over) == ("DeadLayer", kept.started, kept.summary, False)
    healed = [measured(step, dead=False) for step in (400, 404)]
    (over,) = watch.accept(Batch("ingest", records=healed))
    assert (over.alert, dict(over.labels), over.over) == ("DeadLayer", labels, True)


def test_the_roles_that_a_run_states_are_restored_with_it(tmp_path: Path) -> None:
    history = History(tmp_path)
    train(history, "live", 0, 10, about=ProcessInfo(roles={"x": "loss", "loss": "none"}))
    (found,) = every(PastRanks(history.database, KeyRoles([("x", "objective"), ("grad_norm", "reward")])))
    assert found.roles == {"x": "loss"}
    assert set(found.columns[0]) == {"loss", "grad_norm", "x"}
    history.close()
