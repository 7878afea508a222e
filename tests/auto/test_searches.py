"""Several trainings of one process are runs: folds, jobs of a multirun, trials and fits of a search, runs of a tracker.

Where Optuna, scikit-learn, skorch and nbclient are not installed, functions with their signatures stand for them.
"""

from __future__ import annotations

import json
import re
import sys
from contextlib import contextmanager
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from integrations.trainings import trained
from processes import DEADLINE, Daemon, alarms, clean_environ, eventually, require

from trackside.auto import searches
from trackside.auto.environment import variables
from trackside.auto.hooks import hooks
from trackside.auto.method_wrapping import replace_methods
from trackside.auto.startup.trackside_patched_methods import PATCHED_METHODS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from integrations.trainings import Trained

require("torch")


@contextmanager
def watched(*commands: tuple[str, ...]) -> Iterator[Trained]:
    scripts = (("{root}/tests/auto/watched.py", f"{{root}}/tests/public/{name}.py", *rest) for name, *rest in commands)
    with trained(*scripts) as found:
        yield found


@pytest.fixture(scope="module")
def found() -> Iterator[Trained]:
    with watched(("folds",), ("hydra_sweep", "-m", "lr=0.1,0.2,0.3", "width=2,4")) as made:
        yield made


def test_each_fold_is_a_run_with_its_own_losses_and_without_an_alert(found: Trained) -> None:
    printed = re.findall(r"fold (\d) loss (\S+)", found.printed[0])
    for fold in range(5):
        name = "folds" if fold == 0 else f"folds-{fold + 1}"
        losses = [float(loss) for at, loss in printed if int(at) == fold]
        assert list(found.points(name, "loss").values()) == pytest.approx(losses, rel=1e-8)
        assert list(found.points(name, "loss")) == list(range(72))
        assert set(found.points(name, "samples").values()) == {16.0}
        assert found.alarms(name) == {}


def test_each_job_of_a_multirun_is_a_run_with_its_configuration(found: Trained) -> None:
    for number in range(6):
        config = found.config(f"hydra_sweep-{number}")
        losses = re.findall(rf"^{config['lr']} {config['width']} loss (\S+)", found.printed[1], re.MULTILINE)
        assert len(losses) == 20
        points = found.points(f"hydra_sweep-{number}", "loss")
        assert list(points.values()) == pytest.approx([float(loss) for loss in losses], rel=1e-8)


@pytest.mark.skipif(
    any(find_spec(name) is None for name in ("optuna", "sklearn", "skorch")), reason="they are not installed"
)
@pytest.mark.usefixtures("only_soak")
def test_each_trial_of_optuna_and_each_fit_of_a_grid_search_is_a_run() -> None:
    with watched(("searches", "optuna"), ("searches", "grid")) as found:
        runs = {run["name"]: run for run in found.daemon.api("runs").json()["runs"]}
        trials = [json.loads(line) for line in found.printed[0].splitlines()]
        assert len(trials) == 28
        for number, losses, params, value, state in trials:
            name = f"searches-trial-{number}"
            assert found.points(name, "loss") == dict(enumerate(losses))
            assert set(found.points(name, "learning_rate").values()) == {params["lr"]}
            assert found.config(name).items() >= params.items()
            assert runs[name]["tags"] == ["tune"]
            if state == "COMPLETE":
                assert runs[name]["summary"]["value"] == value
        fits = ["searches", *(f"searches-{number}" for number in range(2, 14))]
        assert set(fits) <= runs.keys()
        searched = ("lr", "module__width")  # besides what skorch's callback describes
        assert [{key: found.config(name)[key] for key in searched} for name in fits[:12:3]] == [
            {"lr": rate, "module__width": width} for rate in (0.01, 0.05) for width in (2, 4)
        ]
        tables = re.findall(r"^ +\d+ +(?:\x1b\S*?m)?([\d.]+)", found.printed[1], re.MULTILINE)
        for number, name in enumerate(fits):
            losses = [*found.points(name, "loss").values()]
            each = len(losses) // 3  # batches of an epoch
            means = [sum(losses[at : at + each]) / each for at in range(0, len(losses), each)]
            assert means == pytest.approx([*map(float, tables[3 * number :][:3])], abs=6e-5)


NOTEBOOK = """
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
kept.append((model, optimizer))
for _ in range(8):
    loss = (model(torch.randn(16, 4)) - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.skipif(find_spec("nbclient") is None or find_spec("ipykernel") is None, reason="they are not installed")
@pytest.mark.usefixtures("only_soak")
def test_each_training_of_a_notebook_is_a_run(daemon: Daemon, tmp_path: Path) -> None:
    import nbclient
    import nbformat

    cells = ["import torch\nfrom torch import nn\nkept = []", *[NOTEBOOK] * 3]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    known = {"TRACKSIDE_ENDPOINT": daemon.endpoint, "OMP_NUM_THREADS": "1", "IPYTHONDIR": str(tmp_path)}
    environ: dict[str, Any] = clean_environ({**known, **variables(known)})
    nbclient.NotebookClient(notebook, timeout=DEADLINE).execute(env=environ)
    names = ["notebook", "notebook-2", "notebook-3"]
    eventually(lambda: [run["state"] for run in daemon.api("runs").json()["runs"]] == ["finished"] * len(names))
    runs = daemon.api("runs").json()["runs"]
    assert sorted(run["name"] for run in runs) == names
    for run in runs:
        [series] = daemon.api(f"series?run={run['id']}&key=loss&by=step&points=0").json()["series"]
        assert [step for step, *_ in series["points"]] == list(range(8))
        assert alarms(daemon, f'run="{run["name"]}"') == {}


class Recorded:
    """In place of the process's run: what the searches begin, describe and sum up."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.queue = SimpleNamespace(summary=lambda values, _: self.calls.append(("summary", values)))

    def begin_next(self, suffix: str = "", config: Any = None, tags: tuple[str, ...] = ()) -> None:
        self.calls.append(("begin", suffix, dict(config), tags))

    def describe(self, config: Mapping[str, Any]) -> None:
        self.calls.append(("describe", dict(config)))


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    made = Recorded()
    monkeypatch.setattr(searches, "auto_run", lambda: made)
    return made


class Study:
    """Class with the signature of Optuna's."""

    study_name = "tune"

    def optimize(self, func: Any, n_trials: Any = None, timeout: Any = None, n_jobs: int = 1, **_: Any) -> None:
        del timeout, n_jobs
        self.values = [func(SimpleNamespace(number=number, params={"lr": number})) for number in range(n_trials)]


def installed(monkeypatch: pytest.MonkeyPatch, name: str, **content: Any) -> ModuleType:
    made = ModuleType(name)
    vars(made).update(content)
    monkeypatch.setitem(sys.modules, name, made)
    replace_methods(name, PATCHED_METHODS[name])
    return made


def test_a_trial_has_its_parameters_its_value_and_the_study_s_name(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = installed(monkeypatch, "optuna.study.study", Study=type("Study", (Study,), dict(vars(Study))))
    study = made.Study()
    study.optimize(lambda trial: trial.number / 2, n_trials=2)
    assert study.values == [0.0, 0.5]
    assert recorded.calls == [
        *(("begin", "trial-0", {"lr": 0}, ("tune",)), ("describe", {"lr": 0}), ("summary", {"value": 0.0})),
        *(("begin", "", {}, ()), ("begin", "trial-1", {"lr": 1}, ("tune",))),
        *(("describe", {"lr": 1}), ("summary", {"value": 0.5}), ("begin", "", {}, ())),
    ]
    recorded.calls.clear()
    study.optimize(
        lambda _: study.optimize(lambda one: one.number, 2, None, 2), n_trials=1
    )  # the inner ones share its run
    assert [call[:2] for call in recorded.calls if call[0] == "begin"] == [("begin", "trial-0"), ("begin", "")]
    with pytest.raises(ZeroDivisionError):
        study.optimize(lambda trial: 1 / trial.number, n_trials=1)
    assert recorded.calls[-1] == ("begin", "", {}, ())


def test_what_is_fitted_within_a_trial_is_of_the_trial(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    made = installed(monkeypatch, "optuna.study.study", Study=type("Study", (Study,), dict(vars(Study))))
    name = "sklearn.model_selection._validation"
    fits = installed(monkeypatch, name, _fit_and_score=lambda *_, **named: named["parameters"])
    made.Study().optimize(lambda _: fits._fit_and_score(1, parameters={"C": 1.0})["C"], n_trials=1)
    assert recorded.calls == [
        *(("begin", "trial-0", {"lr": 0}, ("tune",)), ("describe", {"lr": 0})),
        *(("summary", {"value": 1.0}), ("begin", "", {}, ())),
    ]


def test_a_fit_of_a_search_has_its_parameters_and_a_broken_hook_costs_itself(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trackside.auto.hooks.report_failure", lambda *_, **__: None)
    name = "sklearn.model_selection._validation"
    made = installed(monkeypatch, name, _fit_and_score=lambda *_, **named: named["parameters"])
    assert made._fit_and_score(1, 2, 3, parameters={"C": 1.0}) == {"C": 1.0}
    assert made._fit_and_score(1, 2, 3, parameters=None) is None
    assert [call[2] for call in recorded.calls if call[0] == "begin"] == [{"C": 1.0}, {}, {}, {}]
    monkeypatch.setattr(recorded, "begin_next", None)
    assert made._fit_and_score(1, 2, 3, parameters={"C": 2.0}) == {"C": 2.0}
    assert [hook.is_on for key, hook in hooks.items() if key.startswith(name)] == [False, False]
