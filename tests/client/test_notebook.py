"""Training cells of a notebook: one that runs again begins a new attempt."""

from __future__ import annotations

import sys
import types
from typing import TYPE_CHECKING, Any

import pytest
from processes import DEADLINE, Daemon, clean_environ, eventually, require

import trackside

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def daemon(place: Path) -> Iterator[Daemon]:
    one = Daemon(place)
    yield one
    one.stop()


@pytest.fixture
def end_cell(monkeypatch: pytest.MonkeyPatch) -> Callable[[], object]:
    """A function that ends a cell, as IPython does."""
    callbacks: dict[str, Callable[[object], object]] = {}
    shell = types.SimpleNamespace(events=types.SimpleNamespace(register=callbacks.__setitem__))
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    return lambda: callbacks["post_run_cell"](None)


def attempts(daemon: Daemon, name: str) -> list[tuple[int, str, dict[int, float]]]:
    """Return number, state and losses of each attempt of a run."""
    run = next(run for run in daemon.api("runs").json()["runs"] if run["name"] == name)
    found = daemon.api(f"series?run={run['id']}&key=loss&points=0").json()["series"]
    points = {one["attempt"]: {step: value for step, _, value in one["points"]} for one in found}
    states = daemon.api(f"runs/{run['id']}").json()["attempt_list"]
    return [(one["attempt"], one["state"], points.get(one["attempt"], {})) for one in states]


def test_steps_that_begin_anew_in_another_cell_are_a_new_attempt(
    daemon: Daemon, end_cell: Callable[[], object]
) -> None:
    run = trackside.init("cells", endpoint=daemon.endpoint)

    def cell(*steps: int, **more: float) -> None:
        for step in steps:
            run.push(step=step, loss=float(step), **more)
        end_cell()

    cell(0, 1, 2)
    cell(2, best=1.0)  # an evaluation of the last step
    cell(3, 4)  # more epochs
    eventually(lambda: daemon.series().get('trackside_training_step{rank="0",run="cells"}') == 4)
    cell(0, 1, 0, 1)  # again, with epochs that count from 0
    run.finish()
    ended = [(0, "finished", dict(enumerate(map(float, range(5))))), (1, "finished", {0: 0.0, 1: 1.0})]
    assert eventually(lambda: (found := attempts(daemon, "cells"))[-1][1] == "finished" and found) == ended
    assert daemon.series()['trackside_training_steps_total{rank="0",run="cells"}'] == 2


@pytest.mark.usefixtures("only_soak")
def test_a_notebooks_cell_that_runs_again_is_the_next_attempt(daemon: Daemon, tmp_path: Path) -> None:
    require("nbclient")
    import nbclient
    import nbformat

    train = "for step in range(50):\n    trackside.push(step=step, loss=0.5)"
    cells = ["import trackside", train, "trackside.push(step=49, best=0.25)", train, "trackside.finish()"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    environ: dict[str, Any] = clean_environ({"TRACKSIDE_ENDPOINT": daemon.endpoint, "IPYTHONDIR": str(tmp_path)})
    nbclient.NotebookClient(notebook, timeout=DEADLINE).execute(env=environ)
    states = [(number, state, len(losses)) for number, state, losses in attempts(daemon, "notebook")]
    assert states == [(0, "finished", 50), (1, "finished", 50)]
