"""Parts of simulated ranks: a barrier, workers, and a model whose loss depends on its input."""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest
from processes import eventually

import trackside
from trackside_daemon.demo import simulated, train, training_text, troubles
from trackside_daemon.demo.options import DemoOptions, DemoOptionsError
from trackside_daemon.demo.simulated import SimulatedModel, SimulatedRankGpu, Workers, accuracy, utilization
from trackside_daemon.demo.stop_signal import StopRequest
from trackside_daemon.demo.supervisor import progress, summary
from trackside_daemon.demo.train import Barrier
from trackside_daemon.nvml.simulation.simulate import simulate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trackside.run import Run
    from trackside.wire import Device

CORPUS = training_text.load()


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedModel]:
    """A model whose steps do not sleep, with the client turned off."""
    monkeypatch.setenv("TRACKSIDE_DISABLED", "1")
    monkeypatch.setattr(time, "sleep", lambda _: None)
    yield SimulatedModel(CORPUS, Random(0))
    trackside.finish()


def pieces(model: SimulatedModel) -> list[bytes]:
    return training_text.windows(CORPUS.train, count=model.batch, length=model.context + 1, random=model.random)


def losses(model: SimulatedModel, steps: int, rate: float = train.PEAK_LEARNING_RATE) -> list[float]:
    return [model.step(pieces(model), rate)[0] for _ in range(steps)]


def test_the_loss_begins_at_a_guess_and_falls(model: SimulatedModel) -> None:
    fell = losses(model, 300)
    assert fell[0] == pytest.approx(math.log(len(CORPUS.vocabulary)), abs=0.2)
    assert sum(fell[-5:]) / 5 < 0.7 * fell[0]
    assert 0.1 < accuracy(fell[0]) < accuracy(fell[-1]) < 0.7


def test_random_characters_are_worse_than_text(model: SimulatedModel) -> None:
    usual = losses(model, 100)[-1]
    garbage = [bytes(model.random.choices(range(len(CORPUS.vocabulary)), k=len(one))) for one in pieces(model)]
    assert model.loss(garbage) > usual + 1


def test_a_mad_learning_rate_makes_the_loss_overflow(model: SimulatedModel) -> None:
    assert not math.isfinite(losses(model, 100, troubles.BAD_LEARNING_RATE)[-1])


def test_the_gpu_of_a_rank_reports_its_phases_and_its_memory(model: SimulatedModel) -> None:
    reported: list[Device] = []
    gpu = SimulatedRankGpu(
        cast("Run", SimpleNamespace(is_open=True, queue=SimpleNamespace(append=lambda _, done: reported.append(done)))),
        3,
        model,
    )
    for _ in range(2):
        gpu.step()
    assert [set(one.phases) for one in reported] == [{"forward", "backward", "optimizer"}] * 2
    [(uuid, memory)] = reported[-1].memory.items()
    assert uuid == simulate(4, 0.0).gpus[3].uuid
    assert memory.allocated < memory.peak < memory.reserved


def test_utilization_is_a_share(model: SimulatedModel) -> None:
    assert 0.3 < utilization(model, 0.1) < 0.4


def barriers(file: Path, ranks: int) -> list[Barrier]:
    return [Barrier(str(file), rank, ranks) for rank in range(ranks)]


def test_no_rank_continues_before_all_have_arrived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = barriers(tmp_path / "ranks", 2)
    came: list[bool] = []
    monkeypatch.setattr(time, "sleep", lambda _: came.append(second.wait(StopRequest())))
    for times in (1, 2):
        assert first.wait(StopRequest())
        assert came == [True] * times


def test_a_wait_for_a_rank_that_never_arrives_can_be_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, _ = barriers(tmp_path / "ranks", 2)
    stop = StopRequest()
    monkeypatch.setattr(time, "sleep", lambda _: stop.set())
    assert not first.wait(stop)


def children() -> list[int]:
    return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]


def comm(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


def test_workers_have_their_name_and_leave_nothing_when_they_end() -> None:
    before = set(children())
    workers = Workers(2)
    forked = set(children()) - before
    assert len(forked) == 2
    eventually(lambda: {comm(pid) for pid in forked} == {"pt_data_worker"})
    workers.end()
    assert set(children()) == before


def test_workers_end_with_their_rank() -> None:
    reading, writing = os.pipe()
    if not (rank := os.fork()):
        try:
            Workers(2)
            os.write(writing, " ".join(map(str, children())).encode())
            signal.pause()
        finally:
            os._exit(1)
    forked = [int(pid) for pid in os.read(reading, 100).split()]
    os.close(reading)
    os.close(writing)
    assert len(forked) == 2
    os.kill(rank, signal.SIGKILL)
    os.waitpid(rank, 0)
    eventually(lambda: not any(lives(pid) for pid in forked))


def lives(pid: int) -> bool:
    """Return whether a process is alive; a zombie is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(
    ("wanted", "driver", "gpus"),
    [
        (DemoOptions(), False, 2),
        (DemoOptions(), True, 0),
        (DemoOptions(gpus=1), True, 1),
        (DemoOptions(ranks=1), True, 2),
        (DemoOptions(ranks=4), False, 4),
        (DemoOptions(ranks=4, gpus=8), False, 8),
    ],
)
def test_how_many_gpus_are_simulated(wanted: DemoOptions, driver: bool, gpus: int, tmp_path: Path) -> None:
    version = tmp_path / "version"
    if driver:
        version.touch()
    assert wanted.simulated_gpus(version) == gpus


def test_numpy_is_checked_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    DemoOptions().check()
    monkeypatch.setitem(sys.modules, "numpy", None)
    with pytest.raises(DemoOptionsError, match=r"pip install 'trackside\[demo\]'.*--ranks 4"):
        DemoOptions().check()
    DemoOptions(ranks=4).check()


@pytest.mark.parametrize(
    ("loss", "shown"),
    [(1.5, "1.500"), (999_999.0, "999999.000"), (1.23456e150, "1.235e+150"), (-math.inf, "-inf"), (math.nan, "nan")],
)
def test_a_loss_that_overflows_stays_short(loss: float, shown: str) -> None:
    ranks = [{"step": 7.0, "loss": loss, "grad_norm": loss}]
    assert f"loss {shown:>6}   grad_norm {shown:>6}" in progress(ranks)
    assert f"last loss {shown};" in summary(ranks, 1)


def test_a_wrong_argument_of_a_rank_is_refused() -> None:
    with pytest.raises(SystemExit) as ended:
        simulated.main(["--meet", "x", "--steps", "0"])
    assert ended.value.code == 2
