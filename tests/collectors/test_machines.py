"""Machines of all kinds as trees of files, with their pages and logs, compared word for word.

A directory of `machines/` is a machine: ``proc`` and ``sys``, and ``members`` with a line ``PID RANK`` for each rank
that trains there. ``pytest --update-golden`` rewrites the pages; review the diff.
"""

from __future__ import annotations

import logging
import os
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from processes import ROOT

from trackside_daemon.collectors.cgroup.cgroup import CgroupCollector
from trackside_daemon.collectors.host import host
from trackside_daemon.collectors.host.host import TimeCollector, host_collectors
from trackside_daemon.collectors.process.process import ProcessCollector
from trackside_daemon.collectors.settings import CollectorsSection, CpuSection, PathSection, ThermalSection
from trackside_daemon.linux.adjtimex import Discipline
from trackside_daemon.model.rank_process import RankProcess
from trackside_daemon.model.state import State
from trackside_daemon.sampling.sampler import Sampler
from trackside_daemon.web.exposition import render

if TYPE_CHECKING:
    from collections.abc import Callable

MACHINES = Path(__file__).parent / "machines"
GOLDEN = ROOT / "tests" / "golden" / "host"
WALL = 1_760_000_000.0
UNAME = os.uname_result(("Linux", "gpu7", "6.8.0-45-generic", "#45-Ubuntu SMP PREEMPT_DYNAMIC", "x86_64"))


def members(machine: Path) -> tuple[RankProcess, ...]:
    """Return the ranks that train on a machine."""
    file = machine / "members"
    pairs = [line.split() for line in file.read_text().splitlines()] if file.exists() else []
    return tuple(RankProcess("char-model", "id-7", 0, int(rank), int(rank), "815", int(pid)) for pid, rank in pairs)


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], str]:
    """A function that returns the page of a machine after two ticks."""

    def of(machine: Path) -> str:
        proc = machine / "proc"
        room = SimpleNamespace(
            f_frsize=4096, f_blocks=1000, f_bfree=400, f_bavail=300, f_files=200, f_ffree=150, f_flag=0
        )
        monkeypatch.setattr(os, "statvfs", lambda _path: room)
        kept = Discipline(synchronized=True, offset=-0.0000125)
        clocks = partial(TimeCollector, wall=lambda: WALL, kernel=lambda: kept, uname=lambda: UNAME)
        monkeypatch.setattr(host, "TimeCollector", clocks)
        ranks = members(machine)
        on = CollectorsSection(cpu=CpuSection(per_cpu=machine.name == "plain"), thermal=ThermalSection(enabled=True))
        collectors = [
            *host_collectors(on, PathSection(procfs=str(proc), sysfs=str(machine / "sys")), on.filesystem.paths),
            CgroupCollector(lambda: ranks, proc, root=machine),
            ProcessCollector(lambda: ranks, proc),
        ]
        ticks = iter(range(1000))
        sampler = Sampler(collectors, lambda _: None, 1.0, clock=lambda: next(ticks) / 64, wall=lambda: WALL)
        state = State()
        for now in (0.0, 1.0):
            for batch in sampler.tick(now):
                state.update(batch)
        return render(state.snapshot(1.0), openmetrics=False).decode()

    return of


@pytest.mark.parametrize("machine", sorted(MACHINES.iterdir()), ids=lambda path: path.name)
def test_a_machine_has_its_page_and_its_log(
    machine: Path, page: Callable[[Path], str], caplog: pytest.LogCaptureFixture, *, update_golden: bool
) -> None:
    caplog.set_level(logging.INFO, "trackside")
    reported = {f"{machine.name}.txt": page(machine)}
    lines = [f"{record.levelname}: {record.getMessage()}" for record in caplog.records]
    reported[f"{machine.name}.log"] = "".join(f"{line}\n" for line in lines).replace(f"{machine}/", "")
    for name, text in reported.items():
        if update_golden:
            (GOLDEN / name).write_text(text)
        assert text == (GOLDEN / name).read_text()
