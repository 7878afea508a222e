"""Trainings of four ranks without a line of trackside: `why` names what slows them down, with rank and phase."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from processes import DEADLINE, ROOT, alarms, clean_environ, eventually, require, start

from trackside.auto.environment import variables

if TYPE_CHECKING:
    from collections.abc import Callable

    from processes import Daemon

require("torch")

WATCHED = (str(ROOT / "tests" / "auto" / "watched.py"), str(ROOT / "tests" / "public" / "four_ranks.py"))
RANKS = 4


class Case(NamedTuple):
    """A training: its flags, and the first cause and the words of its summary."""

    flags: tuple[str, ...]
    cause: str
    words: str


SLOW = ("--times=2", "--slow")
ONE = ("--rank=2", *SLOW)
CASES = {
    "input": Case((*SLOW, "data"), "data_wait", "the training waited for data"),
    "data of a rank": Case(
        (*ONE, "data"), "straggler", r"rank 2 waits [\d.]+ m?s for its data, the others [\d.]+ (µs|ms)\b"
    ),
    "optimizer of a rank": Case((*ONE, "optimizer"), "straggler", r"rank 2 takes [\d.]+ m?s longer in optimizer"),
    "forward of a rank": Case((*ONE, "forward"), "straggler", r"rank 2 takes [\d.]+ m?s longer in forward"),
    "backward of a rank": Case((*ONE, "backward"), "straggler", r"rank 2 takes [\d.]+ m?s longer in backward"),
    "batch of a rank": Case((*ONE, "before"), "straggler", r"rank 2 takes [\d.]+ m?s longer in prepare"),
}

SEEN = CASES.keys() - {"data of a rank"}
"""What tests/model/test_time_ledger.py, tests/client/test_step_stages.py and the trainings of test_troubles.py show in part."""


def trained(daemon: Daemon, run: str, *flags: str) -> dict[str, Any]:
    """Run the training with the hooks of `--auto`, and return its diagnosis."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "GLOO_SOCKET_IFNAME": "lo"}
    same = {
        **place,
        "TRACKSIDE_ENDPOINT": daemon.endpoint,
        "TRACKSIDE_RUN_ID": run,
        "WORLD_SIZE": str(RANKS),
        "LOCAL_WORLD_SIZE": str(RANKS),
        "OMP_NUM_THREADS": "1",
    }
    ranks = [
        start(
            [sys.executable, *WATCHED, *flags],
            env=clean_environ({**same, "RANK": str(rank), "LOCAL_RANK": str(rank)}),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(RANKS)
    ]
    try:
        assert [rank.communicate(timeout=DEADLINE)[0] for rank in ranks] == ["done\n"] * RANKS
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
    eventually(lambda: daemon.api(f"runs/{run}").json()["state"] == "finished")
    found: dict[str, Any] = daemon.api(f"runs/{run}/diagnosis").json()
    return found


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.only_soak] if name in SEEN else []) for name in CASES]
)
def test_the_first_cause_has_rank_and_phase(daemon: Daemon, count: Callable[[int, int], int], name: str) -> None:
    case = CASES[name]
    for number in range(count(1, 5)):
        (cause, *_) = trained(daemon, f"run{number}", *case.flags)["causes"]
        assert cause["cause"] == case.cause
        assert re.search(case.words, cause["summary"]), cause["summary"]


@pytest.mark.only_soak
def test_of_ranks_that_are_alike_none_costs_much_of_the_time(daemon: Daemon, count: Callable[[int, int], int]) -> None:
    for number in range(count(1, 5)):
        found = trained(daemon, f"run{number}", "--steps=150")
        marked = {re.findall('phase="(.*?)"', name)[0] for name in daemon.series() if "_phase_seconds_total{" in name}
        assert marked >= {"data", "prepare", "forward", "backward", "sync", "optimizer"}
        # Of two seconds on a busy machine, one of them can have had less of the processors.
        named = [cause for cause in found["causes"] if "waited for rank" in cause["summary"]]
        assert all(cause["lost_seconds"] < found["wall_seconds"] / 4 for cause in named)
        assert alarms(daemon) == {}


@pytest.mark.only_soak
def test_memory_that_grows_in_all_ranks_is_named(daemon: Daemon) -> None:
    found = trained(daemon, "run", "--slow=memory", "--steps=800", "--seconds=0.2")
    assert found["causes"][0]["cause"] == "host_memory_leak"


def test_an_import_of_pytorch_puts_all_hooks_in_place() -> None:
    code = "import torch; print(*(hasattr(one, '__wrapped__') for one in (torch.distributed.Work.wait, torch.save)))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=clean_environ(variables(os.environ)),
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("True True\n", "")
