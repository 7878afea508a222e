"""Frameworks with a loop of their own, with the documented line and under --auto: values as in their own logs.

`make soak` installs them, except Composer, which accepts no current PyTorch. Only PyTorch-Ignite is tried in short runs too.
"""

from __future__ import annotations

import json
import re
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest
from diffs import section
from integrations.trainings import trained

if TYPE_CHECKING:
    from integrations.trainings import Trained

SCRIPTS = {
    "boosters_and_others": ("xgboost", "lightgbm", "catboost", "keras", "fastai"),
    "torch_frameworks": ("ignite", "skorch", "mmengine", "ultralytics", "composer", "torchtune", "torchtitan"),
}
TRAIN_TWICE = {"xgboost", "lightgbm", "ignite", "skorch"}
"""Under --auto, as the second training of a process is its next run."""

LOGGERS = {"composer", "torchtune", "torchtitan"}
"""Under --auto, their loggers are found, which learn nothing of a training's end."""

OF_EPOCHS = ("eval/", "metrics/", "train/nll")

INSTALLED = [
    pytest.param(script, name, backend, marks=[] if name == "ignite" else [pytest.mark.only_soak])
    for script, names in SCRIPTS.items()
    for name in names
    for backend in (("torch", "jax", "tensorflow") if name == "keras" else ("torch",))
    if find_spec(name) is not None and find_spec(backend) is not None
]


def agrees(found: Trained, name: str, printed: str) -> None:
    """Compare each series of a run with what the script has printed."""
    for key, values in json.loads(printed).items():
        points = found.points(name, key)
        assert list(points.values()) == pytest.approx(values, rel=1e-4), key
        if not key.startswith(OF_EPOCHS):
            first = min(points)
            assert list(points) == list(range(first, first + len(values)))
            assert first == (key == "own_loss")  # torchtune and torchtitan count from 1


@pytest.mark.parametrize(("script", "framework", "backend"), INSTALLED)
def test_values_are_those_of_the_framework_s_own_log(script: str, framework: str, backend: str) -> None:
    path = f"{{root}}/tests/public/{script}.py"
    line = (path, framework, "line")
    environ = {"KERAS_BACKEND": backend}
    starts: tuple[str, ...] = ("-m", "trackside.auto")
    if framework == "ignite":
        starts = ("{root}/tests/auto/watched.py",)  # a fork server has PyTorch and Ignite
    else:
        environ["PYTHONWARNINGS"] = "ignore"
    alone, auto = (path, framework), (*starts, path, framework)
    with trained(line, alone, auto, environ=environ) as found:
        assert found.printed[1] == found.printed[2]
        by_line, by_auto = ([line for line in text.splitlines() if line[0] == "{"] for text in found.printed[::2])
        for text in by_line:
            agrees(found, framework, text)
        for number, text in enumerate(by_auto, 1):
            agrees(found, f"{script}-{number}" if number > 1 and framework in TRAIN_TWICE else script, text)
        runs = found.daemon.api("runs").json()["runs"]
        assert len(runs) == 2 + (framework in TRAIN_TWICE)
        assert all(run["state"] == "finished" for run in runs)
        after = set(re.findall(r'phase="evaluation",.*?run="(.*?)"', "\n".join(found.daemon.series())))
        assert after == {run["name"] for run in runs} or framework in LOGGERS  # no steps are expected after a training
        assert found.alarms(framework) == found.alarms(script) == {}
        assert len(found.page(framework)["attempt_list"]) == 1 + (framework == "mmengine")  # which resumes


BATCHES = """
import json
import numpy as np, sklearn.metrics, trackside
from sklearn.linear_model import SGDClassifier

trackside.init("partial_fit")
rng, classes, losses = np.random.default_rng(0), [0, 1], []
batches = [(X, X.sum(1) > 0) for X in rng.normal(size=(20, 16, 4))]
model = SGDClassifier(loss="log_loss", random_state=0)

def log_loss(*given, **named):
    losses.append(sklearn.metrics.log_loss(*given, **named))
    return losses[-1]

"""


@pytest.mark.usefixtures("only_soak")
def test_the_documented_lines_push_the_loss_of_each_partial_fit() -> None:
    example = section("scikit-learn").partition("```python\n")[2].partition("```")[0]
    script = f"{BATCHES}{example}print(json.dumps({{'loss': losses}}))\n"
    with trained(("{folder}/batches.py",), changed={"batches.py": script}) as found:
        agrees(found, "partial_fit", found.printed[0])
        assert found.alarms("partial_fit") == {}
