"""XGBoost: `TracksideCallback` pushes each round's scores.

from trackside.integrations.xgboost import TracksideCallback

xgb.train(params, data, evals=[(data, "train")], callbacks=[TracksideCallback()])
XGBClassifier(callbacks=[TracksideCallback()]).fit(X, y, eval_set=[(X, y)])
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from xgboost.callback import TrainingCallback

from trackside.integrations.run_adapter import RunCallback, guarded

if TYPE_CHECKING:
    from collections.abc import Mapping


class TracksideCallback(RunCallback, TrainingCallback):
    """A callback for ``callbacks=[…]``: a step for each round, with the scores of each data set as ``train/rmse``."""

    def __init__(self, name: str | None = None, **arguments: Any) -> None:
        super().__init__(name, **arguments)
        self._log: Mapping[str, Mapping[str, Any]] = {}
        self._pushed = (0, 0)

    def before_training(self, model: Any) -> Any:
        """Open the run."""
        guarded("XGBoost: the begin of a training", self._begin, model)
        return model

    def after_iteration(self, model: Any, epoch: int, evals_log: Mapping[str, Mapping[str, Any]]) -> bool:
        """Push the scores of a round, and let the training go on."""
        self._log, self._pushed = evals_log, (epoch, _rounds(evals_log))
        guarded("XGBoost: a round", lambda: self.adapter.open().push(_scores(evals_log), step=epoch))
        return False

    def after_training(self, model: Any) -> Any:
        """Push a round after which an earlier callback has stopped the training, and leave the run to what follows."""
        epoch, rounds = self._pushed
        if rounds and _rounds(self._log) > rounds:
            guarded("XGBoost: the last round", lambda: self.adapter.open().push(_scores(self._log), step=epoch + 1))
        self._log = {}
        guarded("XGBoost: the end of a training", self.adapter.rest)
        return model

    def _begin(self, model: Any) -> None:
        self.adapter.begin()
        self.adapter.describe(guarded("XGBoost: the parameters", _parameters, model))


def _rounds(log: Mapping[str, Mapping[str, Any]]) -> int:
    return max((len(history) for scores in log.values() for history in scores.values()), default=0)


def _scores(log: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Return the newest scores; those of a cross-validation are means with a deviation."""
    values = {}
    for data, scores in log.items():
        for metric, history in scores.items():
            newest = history[-1]
            key = f"{data}/{metric}"
            if isinstance(newest, tuple):
                newest, values[f"{key}/std"] = newest
            values[key] = newest
    return values


def _parameters(model: Any) -> dict[str, Any]:
    """Return what a booster was configured with; nothing for the folds of a cross-validation."""
    if not hasattr(model, "save_config"):
        return {}
    learner = json.loads(model.save_config())["learner"]
    found = {key: value for key, value in learner["learner_train_param"].items() if isinstance(value, str)}
    return {**found, **learner["gradient_booster"].get("tree_train_param", {})}
