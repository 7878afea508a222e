"""Frameworks that are no PyTorch loop, with the documented line and under --auto: values as in their own logs.

`make soak` installs them.
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest
from integrations.trainings import trained

if TYPE_CHECKING:
    from integrations.trainings import Trained

SCRIPT = "{root}/tests/public/boosters_and_others.py"
FRAMEWORKS = ("xgboost", "lightgbm", "catboost", "keras", "fastai")
INSTALLED = [name for name in FRAMEWORKS if find_spec(name) is not None]


def agrees(found: Trained, name: str, printed: str) -> None:
    """Compare each series of a run with what the script has printed."""
    for key, values in json.loads(printed).items():
        assert list(found.points(name, key).values()) == pytest.approx(values, rel=1e-4), key
        if not key.startswith("eval/"):
            assert list(found.points(name, key)) == list(range(len(values)))


@pytest.mark.parametrize("framework", INSTALLED)
def test_values_are_those_of_the_framework_s_own_log(framework: str) -> None:
    line = (SCRIPT, framework, "line")
    alone, auto = (SCRIPT, framework), ("-m", "trackside.auto", SCRIPT, framework)
    environ = {"KERAS_BACKEND": "torch", "PYTHONWARNINGS": "ignore"}
    with trained(line, alone, auto, environ=environ) as found:
        assert found.printed[1] == found.printed[2]
        first, *others = found.printed[0].splitlines()
        agrees(found, framework, first)
        for text in others:
            agrees(found, framework, text)
        name = "boosters_and_others"
        for number, text in enumerate(found.printed[2].splitlines(), 1):
            of_next = number > 1 and framework in {"xgboost", "lightgbm"}
            agrees(found, f"{name}-{number}" if of_next else name, text)
        runs = [run["name"] for run in found.daemon.api("runs").json()["runs"]]
        assert len(runs) == 2 + (framework in {"xgboost", "lightgbm"})
        assert all(run["state"] == "finished" for run in found.daemon.api("runs").json()["runs"])
        assert found.alarms(framework) == found.alarms(name) == {}
