"""A day of eight healthy ranks through all detectors and rules: nothing above info fires."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING

from alerts.test_builtin import healthy
from in_process_daemon import InProcessDaemon, alerts_above_info
from msgspec.structs import replace
from wire_messages import FakeSession, clock

from trackside.wire import Heartbeat, TrainingEvent

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

RANKS = 8
STEP_SECONDS = 3.0
TICK_SECONDS = 5
EVAL_STEPS, EVAL_SECONDS = 100, 60
CHECKPOINT_STEPS, CHECKPOINT_SECONDS = 200, 25
GIB = 2.0**30
PUSHED = 5


class Job:
    """Eight ranks that train together, each a client session, and the machine that they are on."""

    def __init__(self, whole: InProcessDaemon) -> None:
        self._whole = whole
        self._noise = random.Random(7)
        self._ranks = [FakeSession("day", name="day", rank=rank, world=RANKS, pid=0, boot="") for rank in range(RANKS)]
        self._spent = [dict.fromkeys(("data", "forward", "backward", "eval", "checkpoint"), 0.0) for _ in self._ranks]
        self._number = 0
        self.step = 0
        for rank in self._ranks:
            whole.receive(rank.frames("hello", rank.hello(whole.after)))

    def train(self) -> None:
        """Make a step of all ranks, followed by an evaluation or a checkpoint when one is due."""
        self.step += 1
        self._pass(STEP_SECONDS * self._noise.uniform(0.97, 1.03))
        self._number += 1
        saved = [TrainingEvent("checkpoint", clock(self._whole.after).monotonic, self.step)]
        for number, rank in enumerate(self._ranks):
            spent = self._spent[number]
            spent["data"] += 0.1 * STEP_SECONDS * self._noise.uniform(0.5, 1.5)
            spent["forward"] += 0.3 * STEP_SECONDS * self._noise.uniform(0.95, 1.05)
            spent["backward"] += 0.6 * STEP_SECONDS * self._noise.uniform(0.95, 1.05)
            reported = {"phases": dict(spent), "paused": spent["eval"] + spent["checkpoint"]}
            body = rank.pushes(self._values(), step=self.step, after=self._whole.after, **reported)
            if self.step % CHECKPOINT_STEPS == 1 and number == 0 and self.step > 1:
                body = replace(body, events=saved)
            self._whole.receive(rank.frames("batch", body, self._number), PUSHED)
        if self.step % EVAL_STEPS == 0:
            self._pause("eval", EVAL_SECONDS)
        if self.step % CHECKPOINT_STEPS == 0:
            self._pause("checkpoint", CHECKPOINT_SECONDS)

    def _values(self) -> dict[str, float]:
        noise, step = self._noise, self.step
        return {
            "loss": 1.8 + 8.0 / (1 + step / 50) ** 0.7 + noise.gauss(0, 0.02),
            "grad_norm": 0.6 * math.exp(noise.gauss(0, 0.15)),
            "learning_rate": 3e-4 * min(1.0, step / 500) * (0.55 + 0.45 * math.cos(math.pi * step / 30_000)),
            "tokens": 4096.0,
            "reward": noise.gauss(0, 1),
        }

    def _pause(self, phase: str, seconds: int) -> None:
        """Let all ranks stay in a phase and send only heartbeats."""
        for _ in range(seconds):
            self._pass(1.0)
            for number, rank in enumerate(self._ranks):
                self._spent[number][phase] += 1.0
                totals = replace(rank.totals, phases=dict(self._spent[number]))
                beat = Heartbeat(clock(self._whole.after), 0, totals, step=self.step, phase=phase)
                self._whole.receive(rank.frames("beat", beat))

    def _pass(self, seconds: float) -> None:
        """Time passes, and the sampler ticks."""
        end = self._whole.after + seconds
        due = (self._whole.after // TICK_SECONDS + 1) * TICK_SECONDS
        while due <= end:
            self._whole.after = due
            self._whole.tick(self._machine(due), gpus=True)
            due += TICK_SECONDS
        self._whole.after = end

    def _machine(self, now: float) -> dict[str, float]:
        """Return the samples of the host and the ranks' processes, with noise, and caches that fill and are dropped."""
        noise = self._noise
        values = {name: value for name, value in healthy(now).items() if not name.startswith("trackside_gpu")}
        values = {name: value for name, value in values.items() if "run=r" not in name}
        values["trackside_host_memory_available_bytes"] = (200 + 50 * math.sin(now / 4000) + noise.gauss(0, 2)) * GIB
        free = 3e11 - 2e10 * (now / 3600 % 6)  # checkpoints fill the disk, and the old ones are deleted
        values["trackside_host_filesystem_avail_bytes{mountpoint=/data,fstype=xfs}"] = free
        for rank in range(RANKS):
            series = f"{{run=day,rank={rank}}}"
            held = 30 + noise.uniform(0, 1) + 0.5 * (now % 600 / 600)
            values |= {
                f"trackside_process_info{{pid={rank + 1},role=rank,run=day,run_id=day,rank={rank}}}": 1.0,
                f"trackside_process_anonymous_memory_bytes{{pid={rank + 1}}}": held * GIB,
                f"trackside_dataloader_anonymous_memory_bytes{series}": (8 + noise.uniform(0, 1)) * GIB,
                f"trackside_gpu_rank_info{{gpu={rank},uuid=GPU-00000000-0000-0000-0000-{rank:012x},run=day,rank={rank}}}": 1.0,
                f"trackside_gpu_process_memory_bytes{{gpu={rank},uuid=G,pid={rank + 1}}}": 60 * GIB,
            }
        return values


def test_eight_healthy_ranks_raise_nothing_above_info(whole: InProcessDaemon, count: Callable[[int, int], int]) -> None:
    minutes = count(14, 24 * 60)  # a checkpoint and two evaluations at least
    job = Job(whole)
    while whole.after < minutes * 60:
        job.train()
    print(f"{minutes} simulated minutes: {job.step:,} steps of {RANKS} ranks, {whole.samples:,} samples")  # noqa: T201
    assert alerts_above_info(whole.alerts) == set(), [one.summary for one in whole.alerts if one.severity != "info"]
    assert {one.alert for one in whole.alerts} >= {"RunStarted"}
    assert whole.failures() == {}


def test_the_same_with_a_nan_is_notified(whole: InProcessDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """This shows that the daemon of the healthy day does raise alerts."""
    job = Job(whole)
    for _ in range(50):
        job.train()
    monkeypatch.setattr(job, "_values", lambda: {"loss": math.nan})
    job.train()
    assert alerts_above_info(whole.alerts) == {("NonFinite", "critical")}
