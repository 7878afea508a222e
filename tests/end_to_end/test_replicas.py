"""Ranks that must be equal, real ones: what makes them differ is found and named, and nothing is said of healthy trainings."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

from end_to_end.conftest import finish
from end_to_end.replicated import planted
from processes import DEADLINE, ROOT, eventually, require

if TYPE_CHECKING:
    from collections.abc import Callable

    from end_to_end.conftest import Process
    from processes import Daemon

require("torch")

SCRIPT = str(ROOT / "tests" / "end_to_end" / "replicated.py")
RANKS = 4
LONG = 4 * DEADLINE

STEPS = 40

FAULTS = {
    "outside": ("4 ranks of run outside differ from each other", "in the parameter late."),
    "hsdp_flip": ("ranks 0 and 2 of run hsdp_flip differ", "in the parameter layers.2.weight; at step"),
    "seed": ("4 ranks of run seed differ from each other", "more tensors"),
    "buffer": ("4 ranks of run buffer differ from each other", "in the buffer seen"),
    "branch": ("rank 1 of run branch differs from the 3 others", "in the parameter second.weight"),
    "ignored": ("4 ranks of run ignored differ from each other", "in the parameter second.bias"),
}
"""By the name of a run, what begins and what is in the summary of its alert."""

HEALTHY = ("accumulate", "excluded", "tensor_parallel", "find_unused", "fsdp", "healthy", "bfloat16", "by_hand", "hsdp")


def test_differences_are_found_and_named_and_healthy_trainings_have_none(
    daemon: Daemon, start_training: Callable[..., Process], count: Callable[[int, int], int]
) -> None:
    flips = [f"flip-{seed}" for seed in range(count(1, 30))]
    faults = dict(list(FAULTS.items())[: count(1, len(FAULTS))])
    healthy = HEALTHY[: count(1, len(HEALTHY))]
    for name in flips:
        rank = planted(name, RANKS).rank
        faults[name] = f"rank {rank} of run {name} differs from the 3 others", "the parameter table; at step"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": str(RANKS)}
    place |= {"GLOO_SOCKET_IFNAME": "lo"}
    names = (*faults, *healthy)
    ranks = [start_training(daemon, SCRIPT, *names, str(STEPS), RANK=str(rank), **place) for rank in range(RANKS)]
    for one in ranks:
        finish(one, LONG)

    def states() -> dict[str, str]:
        return {run["name"]: run["state"] for run in daemon.api("runs").json()["runs"]}

    eventually(lambda: states() == dict.fromkeys(names, "finished"))

    def found() -> dict[str, dict[str, Any]]:
        alerts = daemon.api("alerts").json()["alerts"]
        return {one["labels"]["run"]: one for one in alerts if one["alert"] == "ReplicasDiffer"}

    eventually(lambda: set(found()) >= set(faults))
    every = found()
    assert set(every) == set(faults)
    for name, (begin, part) in faults.items():
        assert every[name]["summary"].startswith(begin)
        assert part in every[name]["summary"]
    found_out = daemon.api("runs/flip-0-1/diagnosis").json()
    assert (found_out["health"], found_out["causes"][0]["cause"]) == ("broken", "replicas_differ")
