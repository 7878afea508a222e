"""A machine whose GPUs are simulated and whose procfs the test writes, with a training of one rank and the daemon's parts.

Collectors, pipeline, detectors, history, evidence and alerts are the daemon's; the test sets the clock.
"""

from __future__ import annotations

import os
from random import Random
from typing import TYPE_CHECKING, Any, cast

from alerts.test_simulated import Simulated
from alerts.ticking import Machine
from in_process_daemon import InProcessDaemon
from msgspec.structs import replace
from processes import eventually
from wire_messages import FakeSession, clock, moment, pushed

from trackside.wire import Pushes
from trackside_daemon.alerts.evidence.gathering import EvidenceGatherer
from trackside_daemon.alerts.evidence.sources import Sources
from trackside_daemon.collectors.gpu.gpu import GpuCollector
from trackside_daemon.collectors.host.host import CpuCollector
from trackside_daemon.collectors.host.pressure import PressureCollector
from trackside_daemon.model.metric import Batch
from trackside_daemon.model.records import AlertNote

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from trackside_daemon.collectors.base import Collector
    from trackside_daemon.history.recorder import HistoryRecorder
    from trackside_daemon.model.records import Alert
    from trackside_daemon.model.state import State
    from trackside_daemon.nvml.handle.handle import Nvml

CPUS = 4
EVERY = 10.0
STEP = 0.5
RANK = "trackside_gpu_rank_info{gpu=7,uuid=GPU-7,run=net,rank=0}"


class SlowMachine:
    """The machine and its training, with the usual waits of a healthy machine.

    Args:
        directory: An empty directory.
        seed: Of the noise in waits, clocks and steps.
    """

    def __init__(self, directory: Path, seed: int = 0) -> None:
        self.proc = directory / "proc"
        (self.proc / "pressure").mkdir(parents=True)
        (directory / "history").mkdir()
        self.notes: list[Batch] = []
        self.evidence: EvidenceGatherer
        self._clock = Machine()
        self.gpu = Simulated(self._clock, "h100", ())
        self._chance = Random(seed)
        self._waited = dict.fromkeys(("cpu", "io", "memory"), 0.0)
        self._used = 0.0
        self._phases = {"data": 0.0, "other": 0.0}
        self._steps, self._number = 0, 0
        self._collectors: list[Collector] = [
            PressureCollector(self.proc),
            CpuCollector(self.proc),
            GpuCollector(cast("Nvml", self.gpu), timeout=1.0),
        ]
        names = ["host", *(one.name for one in self._collectors)]
        self.whole = InProcessDaemon(directory / "history", machine=names, listeners=self._listeners)
        self.session = FakeSession("net-1", name="net", pid=0, boot="")
        self.whole.receive(self.session.frames("hello", self.session.hello()))

    def _listeners(self, state: State, history: HistoryRecorder) -> Sequence[Any]:
        sources = Sources(
            state,
            history.database,
            lambda *_: (frozenset(), []),
            list,
            lambda: None,
            proc=str(self.proc),
        )
        self.evidence = EvidenceGatherer(
            sources,
            self.notes.append,
            wall=lambda: moment(self.whole.after).wall,
            clock=lambda: moment(self.whole.after).monotonic,
            pause=lambda _: None,
        )
        return [self.evidence]

    def train(
        self,
        seconds: float,
        *,
        slower: float = 1.0,
        data: float = 0.02,
        cpus: float = 1.0,
        values: Mapping[str, float] | None = None,
        **waits: float,
    ) -> None:
        """Train, and sample the machine every 10 s.

        Args:
            seconds: For how long.
            slower: Factor of the duration of a step.
            data: Share of the time that the training waits for data.
            cpus: CPUs in use.
            values: Further samples of the machine, as `alerts.ticking` writes them.
            waits: Shares of the time in which tasks wait for ``cpu``, ``io`` and ``memory``.
        """
        end = self.whole.after + seconds
        while self.whole.after < end:
            self._push(STEP * slower)
            self.whole.after += EVERY
            self._clock.now = moment(self.whole.after).monotonic
            self._write(waits, cpus)
            waited = data * EVERY * self._chance.uniform(0.8, 1.2)
            self._phases["data"] += waited
            self._phases["other"] += EVERY - waited
            for one in self._collectors:
                batch = Batch(one.name, one.collect(), complete=True, time=moment(self.whole.after).wall)
                self.whole.pipeline.accept(batch)
            self.whole.tick({RANK: 1.0, **(values or {})})
            self.evidence._phases.record(moment(self.whole.after).monotonic, moment(self.whole.after).wall)

    def throttle(self) -> None:
        """Let the GPU be throttled from now on."""
        self.gpu.troubles = ("throttled",)

    def explained(self, alert: str = "ThroughputRegression") -> Alert:
        """Return the alert that has begun, once it has a conclusion."""
        assert [one.alert for one in self.whole.alerts if one.alert == alert], self.whole.alerts
        self.whole.history.writer.flush(60)
        self.evidence.start()
        eventually(lambda: [one for batch in self.notes for one in batch.records if getattr(one, "alert", "") == alert])
        for note in self.notes:
            self.whole.pipeline.accept(note)
        return [one for one in self.whole.alerts if one.alert == alert][-1]

    def evidence_of(self, alert: Alert) -> Mapping[str, Any]:
        """Return the gathered evidence of an alert."""
        notes = (record for batch in self.notes for record in batch.records if isinstance(record, AlertNote))
        return next(note.evidence for note in notes if note.alert == alert.alert)

    def close(self) -> None:
        """Stop."""
        self.evidence.stop()
        self.whole.close()

    def _push(self, step: float) -> None:
        """Push the steps of the next interval, each with some noise."""
        rows, at = [], self.whole.after
        while (at := at + step * self._chance.uniform(0.95, 1.05)) < self.whole.after + EVERY:
            self._steps += 1
            rows.append((at, self._steps, (1.0,)))
        self._number += 1
        totals = {"pushes": self._steps, "steps": self._steps, "phases": dict(self._phases)}
        self.session.totals = replace(self.session.totals, **totals)
        body = Pushes(clock(self.whole.after + EVERY), self.session.totals, [pushed(("loss",), *rows)])
        self.whole.receive(self.session.frames("batch", body, self._number))

    def _write(self, waits: Mapping[str, float], cpus: float) -> None:
        """Write the counters of the kernel."""
        for resource in self._waited:
            usual = 0.01 * self._chance.expovariate(1)
            self._waited[resource] += EVERY * min(1.0, waits.get(resource, 0.0) + usual)
            total = round(self._waited[resource] * 1e6)
            lines = [f"{how} avg10=0.00 avg60=0.00 avg300=0.00 total={total}\n" for how in ("some", "full")]
            (self.proc / "pressure" / resource).write_text("".join(lines))
        self._used += EVERY * (cpus + self._chance.uniform(-0.1, 0.1))
        ticks, idle = os.sysconf("SC_CLK_TCK"), CPUS * self.whole.after - self._used
        (self.proc / "stat").write_text(
            f"cpu  {self._used * ticks:.0f} 0 0 {idle * ticks:.0f} 0 0 0 0 0 0\n"
            + "".join(f"cpu{n} 0 0 0 0 0 0 0 0 0 0\n" for n in range(CPUS))
            + "ctxt 5\nprocs_running 1\nprocs_blocked 0\n"
        )
