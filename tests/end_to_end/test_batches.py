"""The samples of a batch with which a training went wrong, from its loader to the alert, the command and the API."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from processes import ROOT, Daemon, clean_environ, command, eventually, require, run

import trackside

if TYPE_CHECKING:
    from collections.abc import Iterator

require("torch")

ALERTS = ("NonFinite", "LossSpike", "LossHardBatch", "GradientExplosion", "LossDiverging")
POISONED = 777


def alerts(daemon: Daemon, name: str) -> list[dict[str, Any]]:
    """Return the alerts of a run about its loss and gradients, with all of their evidence, oldest first."""
    found = daemon.api(f"alerts?run={name}").json().get("alerts", [])
    return [one for one in found if one["alert"] in ALERTS and "ranks" in one["evidence"]]


def test_each_nan_names_the_samples_of_its_batch_and_the_one_that_they_share(daemon: Daemon) -> None:
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    torch.manual_seed(1)
    loader = DataLoader(TensorDataset(torch.arange(80)), 4, shuffle=True)
    seen: list[list[int]] = []

    def has_batches(number: int) -> list[Any]:
        found = [one for alert in alerts(daemon, "poisoned") for one in alert["evidence"].get("batches", ())]
        return [one for one in found if "before" not in one][number - 1 :]

    with trackside.init("poisoned", endpoint=daemon.endpoint) as training:
        step = 0
        for epoch in range(3):
            for (batch,) in training.data(loader, describe=lambda index: f"img/{index}.png"):
                seen.append(batch.tolist())
                training.push(step=step, loss=float("nan") if 7 in batch else 1.0)
                step += 1
            eventually(lambda number=epoch + 1: has_batches(number))  # type: ignore[misc]
        live = daemon.api(f"runs/poisoned/batches?step={step - 2}&rank=0").json()["batches"]
        assert [one["samples"] for one in live] == [seen[-2]], "asked of the rank, which keeps its last steps"
    (alert,) = alerts(daemon, "poisoned")
    for one in alert["evidence"]["batches"]:
        assert (one["samples"], one["rank"], one["by"]) == (seen[one["step"]], 0, "describe")
        assert one["names"][str(one["samples"][0])] == f"img/{one['samples'][0]}.png"
    assert alert["evidence"]["repeated_samples"] == [{"sample": 7, "times": 3, "of": 3}]
    assert "7 is img/7.png. Sample 7 was in the batch at 3 of the 3 steps" in alert["description"]
    kept = trackside.open("poisoned", path=daemon.history).batches(rank=0)
    assert [one["step"] for one in kept] == [one["step"] for one in alert["evidence"]["batches"]]
    first = kept[0]["step"]
    printed = run(
        command("batch", "poisoned", f"--step={first}", f"--storage.path={daemon.history}"), check=True
    ).stdout
    assert f"step {first}, rank 0: 4 samples of TensorDataset" in printed
    assert ", ".join(f"{index} img/{index}.png" for index in seen[first]) in printed


def cases() -> Iterator[dict[str, Any]]:
    """Yield trainings with a poisoned sample, by loop and loader."""
    poisons = ("nan", "outlier", "label")
    loaders = [
        ("plain", kind, workers) for kind in ("shuffled", "distributed", "batches", "iterable") for workers in (0, 2, 4)
    ]
    loaders += [("plain", "persistent", workers) for workers in (2, 4)] + [("plain", "shuffled", 0)] * 3
    for loop in ("accelerate", "transformers", "lightning", "fabric"):
        loaders += [(loop, "shuffled", 0), (loop, "shuffled", 2), (loop, "persistent", 2), (loop, "iterable", 2)]
    loaders += [("auto", kind, 2) for kind in ("shuffled", "persistent", "iterable", "batches", "distributed")]
    loaders += [("auto", "shuffled", 0), ("auto", "shuffled", 4)]
    for seed, (loop, loader, workers) in enumerate(loaders):
        yield {
            "name": f"{seed}-{loop}-{loader}",
            "loop": loop,
            "loader": loader,
            "workers": workers,
            "poison": poisons[seed % 3],
            "seed": seed,
        }


def trained(chosen: list[dict[str, Any]], place: Path, environ: dict[str, str]) -> dict[str, dict[str, Any]]:
    """Return what trainings in one process did, by name."""
    script = str(ROOT / "tests" / "poisoned_trainings.py")
    arguments = [sys.executable, script, *map(json.dumps, chosen)]
    lines = run(arguments, env=clean_environ(environ), cwd=place, check=True, timeout=1200).stdout.splitlines()
    return {one["name"]: one for line in lines if line.startswith('{"name"') for one in [json.loads(line)]}


@pytest.mark.usefixtures("only_soak")
def test_the_poisoned_sample_is_in_the_evidence_of_the_first_alert_and_batches_stay_as_they_are(
    daemon: Daemon, tmp_path: Path
) -> None:
    from trackside.auto.environment import variables

    every = list(cases())
    own = [case for case in every if case["loop"] != "auto"]
    reported = trained(own, tmp_path, {"TRACKSIDE_ENDPOINT": daemon.endpoint})
    for case in every[len(own) :]:
        auto = {**variables(os.environ), "TRACKSIDE_ENDPOINT": daemon.endpoint, "TRACKSIDE_RUN_NAME": case["name"]}
        reported |= trained([case], tmp_path, auto)
    expected = trained(every, tmp_path, {"TRACKSIDE_DISABLED": "1"})
    assert reported == expected
    missed, fired = [], 0
    for name, case in reported.items():
        found = alerts(daemon, name)
        fired += bool(found)
        if found and not any(map(_has_poison(case), found[0]["evidence"].get("batches", ()))):
            missed.append((name, found[0]["alert"], found[0]["evidence"].get("missing")))
    assert (len(reported), missed) == (40, [])
    assert fired >= 25


def _has_poison(case: dict[str, Any]) -> Any:
    workers = case["workers"]
    share, worker = divmod(POISONED, max(workers, 1))
    number = share // 16 * max(workers, 1) + worker + 1
    place = number, worker if workers else None

    def has(batch: dict[str, Any]) -> bool:
        known = batch.get("number"), batch.get("worker")
        return known == place if case["loader"] == "iterable" else POISONED in batch.get("samples", ())

    return has
