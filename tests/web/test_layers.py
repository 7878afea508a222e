"""Distributions of layers in the API."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from histories import opened
from layer_frames import attention, frame, normal
from session_records import batch_ingested

if TYPE_CHECKING:
    from conftest import Site  # type: ignore[attr-defined]


@pytest.fixture
def observed(site: Site) -> Site:
    record = opened("id-1", name="train")
    frames = [frame(step, {"embed": normal(step), "head": normal(step, 10)}) for step in range(5)]
    heads = [attention(step, {"blocks.0.attn/0": (0.5, 9.0)}) for step in range(5)]
    site.keep(record, batch_ingested(record.session.id, 1, distributions=[*frames, *heads]))
    return site


def test_a_heat_map_is_of_the_first_kind_and_value_unless_others_are_requested(observed: Site) -> None:
    client = observed.client()
    found = client.get("/api/v1/runs/train/layers", headers=observed.key).json()
    assert (found["run"], found["kind"], found["value"], found["layers"]) == (
        "id-1",
        "weights",
        "norm",
        ["embed", "head"],
    )
    assert (found["steps"], list(found["kinds"])) == ([0, 1, 2, 3, 4], ["weights", "attention"])
    query = "?kind=attention&value=logit&points=1&from=1&to=3"
    found = client.get(f"/api/v1/runs/train/layers{query}", headers=observed.key).json()
    assert (found["steps"], found["values"]) == ([3], [[9.0]])


def test_a_window_may_be_of_times(observed: Site) -> None:
    client = observed.client()
    times = client.get("/api/v1/runs/train/layers", headers=observed.key).json()["times"]
    query = f"?by=time&from={times[1]}&to={times[2]}"
    found = client.get(f"/api/v1/runs/train/layers{query}", headers=observed.key).json()
    assert (found["steps"], found["times"]) == ([1, 2], times[1:3])
    late = client.get(f"/api/v1/runs/train/layers?by=time&from={times[-1] + 1}", headers=observed.key).json()
    assert (late["steps"], list(late["kinds"])) == ([], ["weights", "attention"])


def test_a_layer_has_quantiles_counts_and_columns(observed: Site) -> None:
    client = observed.client()
    found = client.get("/api/v1/runs/train/layers/embed?from=4", headers=observed.key).json()
    assert (found["steps"], sum(found["counts"][0]["counts"])) == ([4], 100)
    assert found["quantiles"]["0.05"][0] < found["quantiles"]["0.5"][0] < found["quantiles"]["0.95"][0]
    assert found["columns"][0]["size"] == 100
    path = "/api/v1/runs/train/layers/blocks.0.attn%2F0?kind=attention&rank=all"
    assert client.get(path, headers=observed.key).json()["columns"][0]["entropy"] == 0.5


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/runs/train/layers?kind=x", 400),
        ("/runs/train/layers?value=entropy", 404),
        ("/runs/train/layers?points=3000", 400),
        ("/runs/train/layers?rank=x", 400),
        ("/runs/train/layers?by=epoch", 400),
        ("/runs/train/layers/other", 404),
        ("/runs/other/layers", 404),
    ],
)
def test_what_is_not_there_is_refused_in_one_line(observed: Site, path: str, status: int) -> None:
    answer = observed.client().get(f"/api/v1{path}", headers=observed.key)
    assert answer.status_code == status
    assert "\n" not in answer.json()["error"]["message"]


def test_a_run_without_distributions_has_an_empty_map(site: Site) -> None:
    site.keep(opened("id-2", name="plain"))
    found = site.client().get("/api/v1/runs/plain/layers", headers=site.key).json()
    assert (found["kinds"], found["layers"], found["steps"]) == ({}, [], [])
