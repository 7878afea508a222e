"""The performance of a run over time, from the counters that are recorded beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from histories import BEGIN, column, finished, history, opened

from trackside_daemon.diagnosis.performance import _against_past, read_performance
from trackside_daemon.history.read.series import LogTails, Window
from trackside_daemon.history.training_counters import INTERVAL, MOST_RANKS, TrainingCounters
from trackside_daemon.model.families import training as f
from trackside_daemon.model.metric import Batch, Sample
from trackside_daemon.model.records import MachineSample
from trackside_daemon.model.state import State

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

RUN, RANKS, SECONDS = "lab", 2, 100


def tick(state: State, second: float, *, over: bool = False) -> None:
    """Set the counters: ten steps a second; the forward phase of rank 1 takes twice as long, for which rank 0 waits."""
    samples = [Sample(f.STATE, (RUN, "finished"), float(over)), Sample(f.STATE, (RUN, "running"), float(not over))]
    for rank in range(RANKS):
        of = (RUN, str(rank))
        phases = {"forward": 0.04 * (1 + rank), "backward": 0.06 - 0.04 * rank}
        samples += [Sample(f.STEPS, of, 10 * second), Sample(f.TOKENS, of, 1000 * second)]
        samples += [Sample(f.PHASE_SECONDS, (*of, phase), 10 * second * each) for phase, each in phases.items()]
    state.update(Batch("training", [*samples, Sample(f.STEPS, (RUN, str(MOST_RANKS)), second)]))


def test_rates_own_times_and_waits_follow_from_recorded_counters(tmp_path: Path) -> None:
    recorded: list[MachineSample] = []
    state = State()
    counters = TrainingCounters(state, recorded.extend)
    for second in range(0, SECONDS + 1, 2):
        tick(state, second, over=second == SECONDS)
        counters.record(100.0 + second, BEGIN + second)
    for later in (1, 2):  # the end is recorded once
        counters.record(100.0 + SECONDS + later * INTERVAL, BEGIN + SECONDS + later * INTERVAL)
    assert [round(one.time - BEGIN) for one in recorded] == [*range(0, 97, 6), SECONDS + INTERVAL]
    assert not any(f'rank="{MOST_RANKS}"' in name for name in recorded[0].values)

    with history(tmp_path) as kept:
        kept.put([opened(RUN, rank=rank, world=RANKS) for rank in range(RANKS)])
        kept.put([column(RUN, ["loss"], SECONDS, rank=rank) for rank in range(RANKS)])
        kept.put(recorded)
        kept.put([finished(RUN, after=SECONDS)])

        def read(points: int, window: Sequence[float] = ()) -> dict[str, Any]:
            with kept.database.reading() as connection:
                tails = LogTails(connection)
                return read_performance(connection, RUN, tails, points, Window("time", *window))

        whole = read(10)
        assert whole["times"] == pytest.approx([BEGIN + 10 * part for part in range(1, 11)])
        # Also at the end, whose counters are recorded some seconds later.
        assert whole["tokens_per_second"][1:] == pytest.approx([2000.0] * 9)
        assert whole["step"]["p50"][:-1] == pytest.approx([1.0] * 9)
        assert whole["mfu"] == []
        assert list(whole["phases"]) == ["forward", "backward"]
        assert whole["phases"]["forward"][4] == pytest.approx(0.06)
        slow, fast = whole["ranks"][1], whole["ranks"][0]
        # Rank 1 waits for nobody: its backward is all its own. Half of its ratio is left for rank 0.
        assert (slow["own"][4], slow["wait"][4]) == pytest.approx((0.1, 0.0))
        assert (fast["own"][4], fast["wait"][4]) == pytest.approx((0.05, 0.05))
        assert (slow["ratio"][4], fast["ratio"][4]) == pytest.approx((0.1 / 0.075, 0.05 / 0.075))
        assert slow["past"][:8] == [None] * 8
        assert slow["past"][8] == pytest.approx(1.0, rel=0.01)
        part = read(5, (BEGIN + 20, BEGIN + 30))
        assert (part["times"][0], part["times"][-1]) == pytest.approx((BEGIN + 22, BEGIN + 30))
        assert part["ranks"][1]["own"] == pytest.approx([0.1] * 5)


def test_a_run_without_counters_has_the_duration_of_its_steps_alone(tmp_path: Path) -> None:
    with history(tmp_path) as kept:
        kept.put([opened(RUN), column(RUN, ["loss"], 10), finished(RUN)])
        with kept.database.reading() as connection:
            found = read_performance(connection, RUN, LogTails(connection), 6)
    assert found["step"]["p50"][0] == pytest.approx(1.0)
    assert found["step"]["p50"][-1] is None
    assert (found["tokens_per_second"], found["phases"], found["ranks"]) == ([], {}, [])


def test_a_rank_that_became_slow_is_seen_against_its_own_past() -> None:
    ratios = _against_past([*([0.1] * 8), None, 0.1, 0.2])
    assert ratios[:9] == [None] * 9
    assert ratios[9:] == pytest.approx([1.0, 2.0])


def test_collectives_have_the_bandwidth_of_their_links_and_the_rank_for_which_others_wait(tmp_path: Path) -> None:
    def values(second: float) -> dict[str, float]:
        found = {f'trackside_gpu_rank_info{{gpu="0",rank="0",run="{RUN}",uuid="GPU-0"}}': 1.0}
        for comm, gpu, usual, now in (
            ("slow", 0, 40.0, 20.0),
            ("late", 0, 30.0, 3.0),
            ("late", 2, 40.0, 40.0),
            ("late", 3, 35.0, 2.0),
            ("foreign", 1, 40.0, 40.0),
        ):
            labels = (
                f'collective="AllReduce",comm_name="{comm}",gpu="GPU{gpu}",message_size="1-2GB",node="n",nranks="8"'
            )
            found[f"nccl_bus_bandwidth_gbs{{{labels}}}"] = now if second >= 90 else usual
            found[f"nccl_collective_exec_time_microseconds{{{labels}}}"] = 5000.0
        return found

    with history(tmp_path) as kept:
        kept.put([opened(RUN), column(RUN, ["loss"], SECONDS)])
        kept.put([MachineSample(BEGIN + second, values(second)) for second in range(0, SECONDS, 5)])
        kept.put([finished(RUN, after=SECONDS)])
        with kept.database.reading() as connection:
            slow, late = read_performance(connection, RUN, LogTails(connection), 6)["collectives"]
    about = {"communicator": "slow", "ranks": "8", "operation": "AllReduce", "size": "1-2GB", "waits_for": ""}
    assert slow == {**about, "bandwidth": 20.0, "usual": 40.0, "peers": 40.0, "seconds": 0.005}
    about |= {"communicator": "late", "waits_for": "n GPU2"}
    assert late == {**about, "bandwidth": 40.0, "usual": 40.0, "peers": 20.0, "seconds": 0.005}
