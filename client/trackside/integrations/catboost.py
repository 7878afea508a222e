"""CatBoost: `TracksideCallback` pushes each iteration's scores.

    from trackside.integrations.catboost import TracksideCallback

    CatBoostClassifier().fit(X, y, eval_set=(X, y), callbacks=[TracksideCallback()])

CatBoost takes no callbacks with ``task_type="GPU"``.
"""

from __future__ import annotations

from typing import Any

from trackside.integrations.run_adapter import RunCallback, guarded


class TracksideCallback(RunCallback):
    """A callback for ``callbacks=[…]``: a step for each iteration, with the scores of each data set as ``learn/RMSE``."""

    _is_begun = False

    def after_iteration(self, info: Any) -> bool:
        """Push the scores of an iteration, and let the training go on. The first opens the run."""
        guarded("CatBoost: an iteration", self._push, info)
        return True

    def _push(self, info: Any) -> None:
        if not self._is_begun:
            self._is_begun = True
            self.adapter.begin()
        values = {
            f"{data}/{metric}": scores[-1] for data, all_ in info.metrics.items() for metric, scores in all_.items()
        }
        self.adapter.open().push(values, step=info.iteration - 1)  # CatBoost's own log begins with 0
