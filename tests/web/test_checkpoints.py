"""Checkpoints in the API."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from histories import BEGIN, column, opened

from trackside_daemon.model.checkpoint import CheckedFile, Checkpoint

if TYPE_CHECKING:
    from conftest import Site  # type: ignore[attr-defined]

PATH = "/api/v1/runs/train/checkpoints"


@pytest.fixture
def saved(site: Site) -> Site:
    """A run with an intact checkpoint at step 10, a damaged one at 20, and a deleted one."""
    file = CheckedFile("step-10.pt", 5, 1, 2, (3,))
    rows = (("complete", 10, BEGIN + 60), ("damaged", 20, BEGIN + 60), ("gone", 5, None))
    site.keep(
        [
            opened("id-1", name="train"),
            column("id-1", ["train/loss", "eval"], 25),
            *(
                Checkpoint(
                    "id-1",
                    f"/runs/step-{step}.pt",
                    0,
                    BEGIN + step,
                    "event",
                    state,
                    step,
                    "torch",
                    5,
                    checked,
                    "step-20.pt" if state == "damaged" else "",
                    "step-20.pt: cut off" if state == "damaged" else "",
                    {"accuracy": step / 100} if step == 20 else {},
                    (file,),
                )
                for state, step, checked in rows
            ),
        ]
    )
    return site


def test_checkpoints_are_listed_oldest_first_with_a_metric(saved: Site) -> None:
    answer = saved.client().get(PATH, headers=saved.key).json()
    assert (answer["run"], answer["metric"]) == ("id-1", "accuracy")
    gone, good, damaged = answer["checkpoints"]
    assert [one["state"] for one in (gone, good, damaged)] == ["gone", "complete", "damaged"]
    assert (good["good"], good["files"], good["value"]) == (True, 1, None)
    assert good["fingerprint"]
    assert (damaged["good"], damaged["file"], damaged["reason"]) == (False, "step-20.pt", "step-20.pt: cut off")
    assert damaged["value"] == 0.2
    pushed = saved.client().get(f"{PATH}?metric=eval", headers=saved.key).json()
    assert [one["value"] for one in pushed["checkpoints"]] == [5.1, 10.1, 20.1]
    assert saved.client().get(f"{PATH}?metric=none", headers=saved.key).json()["checkpoints"][0]["value"] is None


def test_an_audit_is_asked_for_with_the_token(saved: Site) -> None:
    client = saved.client()
    assert client.ask("POST", f"{PATH}/audit").status_code == 401
    assert client.ask("POST", f"{PATH}/audit", headers=saved.key).json() == {"run": "id-1"}
    assert client.get(PATH).status_code == 401
    for path in ("/api/v1/runs/other/checkpoints", "/api/v1/runs/%00/checkpoints"):
        answer = client.get(path, headers=saved.key)
        assert answer.status_code == 404
        assert "\n" not in answer.json()["error"]["message"]
