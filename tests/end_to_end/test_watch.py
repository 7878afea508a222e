"""An observed model sharded over ranks: the daemon has norms and distributions of the whole; it requests layers at a spike."""

from __future__ import annotations

import json
import socket
from functools import partial
from subprocess import PIPE
from typing import TYPE_CHECKING, Any

import pytest
from processes import DEADLINE, ROOT, clean_environ, command, eventually
from processes import start as start_process

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from end_to_end.conftest import Process
    from processes import Daemon

SHARDED = str(ROOT / "tests" / "end_to_end" / "sharded.py")

SPIKING = """
import torch, trackside
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
run = trackside.init("spiking")
watcher = run.watch(model, optimizer)
batch = torch.ones(2, 4)

def train(step, scale=1.0):
    optimizer.zero_grad()
    loss = scale * model(batch).square().mean()
    loss.backward()
    optimizer.step()
    run.push(step=step, loss=float(loss))

for step in range(100):
    train(step)
train(100, scale=float("nan"))
while not run.queue.session.layers[0]:
    pass
for step in range(101, 211):
    train(step)
run.finish()
"""


def all_points(daemon: Daemon, asked: str, steps: int) -> list[tuple[int, float, float]]:
    """Return the points of a series once they number *steps*."""
    points: list[tuple[int, float, float]] = daemon.api(asked).json().get("points", [])
    return points if len(points) == steps else []


def test_norms_counts_and_captures_of_a_sharded_model_are_those_of_the_whole(
    daemon: Daemon, start_training: Callable[..., Process]
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": "2"}
    ranks = [start_training(daemon, SHARDED, RANK=str(rank), **place) for rank in range(2)]
    wanted: dict[int, float] = {}
    for one in ranks:
        assert one.stdout is not None
        while not (line := one.stdout.readline()).startswith("{"):
            assert line, one.communicate()[1]
            _, step, norm = line.split()
            assert wanted.setdefault(int(step), float(norm)) == pytest.approx(float(norm))
    whole: dict[str, dict[str, dict[str, int]]] = json.loads(line)
    for rank in range(2):
        asked = f"runs/sharded-1/series?key=grad_norm&points=0&rank={rank}"
        points = eventually(partial(all_points, daemon, asked, len(wanted)))
        assert {step: norm for step, _, norm in points} == pytest.approx(wanted, rel=1e-6)
    page, last = daemon.series(), wanted[max(wanted)]
    of = [f'{{rank="{rank}",run="sharded"}}' for rank in range(2)]
    assert [page[f"trackside_training_grad_norm{one}"] for one in of] == pytest.approx([last, last], rel=1e-6)
    squared = [page[f"trackside_training_grad_norm_local_squared{one}"] for one in of]
    assert sum(squared) == pytest.approx(last**2, rel=1e-6)
    for kind, layers in whole.items():
        eventually(lambda kind=kind: daemon.api(f"runs/sharded-1/layers?kind={kind}").json()["steps"][-1:] == [2])  # type: ignore[misc]
        assert {layer: counted(daemon, layer, kind) for layer in layers} == layers
    captured = capture(daemon, ranks, steps=40)
    assert (captured["state"], captured["kind"], captured["reason"]) == ("summarised", "layers", "")
    assert [file["name"] for file in captured["files"]] == [f"layers_{rank}.jsonl.gz" for rank in range(2)]
    gradients = captured["summary"]["kinds"]["gradients"]["layers"]
    assert {layer: one["size"] for layer, one in gradients.items()} == {
        "0": 104,
        "2": 70,
        "3": 18,
    }  # of the whole model
    assert [one.wait(DEADLINE) for one in ranks] == [0, 0]


def counted(daemon: Daemon, layer: str, kind: str) -> dict[str, int]:
    """Return the counts of a layer at its last step, by the bounds of their buckets."""
    counts = daemon.api(f"runs/sharded-1/layers/{layer}?kind={kind}").json()["counts"][-1]
    return {str(float(bound)): count for bound, count in zip(counts["bounds"], counts["counts"], strict=True)}


def capture(daemon: Daemon, ranks: Sequence[Process], steps: int) -> dict[str, Any]:
    """Return a capture of the layers while the ranks train, and let them end."""
    token = (daemon.directory / "push.token").read_text().strip()
    arguments = (
        "capture",
        "sharded",
        "--layers",
        f"--steps={steps // 2}",
        "--json",
        f"--url={daemon.url}/#token={token}",
    )
    asked = start_process(command(*arguments), stdout=PIPE, stderr=PIPE, text=True, env=clean_environ())
    for one in ranks:
        assert one.stdin is not None
        one.stdin.write(f"{steps}\n")
        one.stdin.close()
    printed, complaints = asked.communicate(timeout=DEADLINE)
    assert asked.returncode == 0, complaints
    found: dict[str, Any] = json.loads(printed)
    return found


def test_when_the_loss_is_not_finite_the_layers_are_sent_for_a_hundred_steps(
    daemon: Daemon, run_training: Callable[..., str]
) -> None:
    run_training(daemon, "-c", SPIKING)
    (event,) = [
        one for one in daemon.api("events?run=spiking").json()["events"] if one["kind"] == "nonfinite_gradients"
    ]
    assert event["fields"]["layer"] == "0"
    for layer in ("0", "1"):
        points = daemon.api(f"runs/spiking/series?key=grad_norm/{layer}&points=0").json()["points"]
        assert [step for step, _, _ in points] == list(range(102, 202))
