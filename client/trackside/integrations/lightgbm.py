"""LightGBM: `TracksideCallback` pushes each round's scores.

from trackside.integrations.lightgbm import TracksideCallback

lgb.train(params, data, valid_sets=[data], callbacks=[TracksideCallback()])
LGBMClassifier().fit(X, y, eval_set=[(X, y)], callbacks=[TracksideCallback()])
"""

from __future__ import annotations

from typing import Any

from trackside.integrations.run_adapter import RunAdapter, RunCallback, never_raises


class TracksideCallback(RunCallback):
    """A callback for ``callbacks=[…]``: a step for each round, with the scores of each data set as ``training/l2``."""

    order = 10  # before `early_stopping`, which raises
    before_iteration = False

    @never_raises
    def __call__(self, env: Any) -> None:
        """Push the scores of a round. The first opens the run, and ends that of the callback before."""
        if env.iteration == env.begin_iteration:
            _end_last(self.adapter)
            self.adapter.begin()
            self.adapter.describe(env.params, env.end_iteration)
        values: dict[str, float] = {}
        for data, metric, value, _, *deviation in env.evaluation_result_list or ():
            key = f"{data}/{metric}".replace(" ", "/") if deviation else f"{data}/{metric}"
            values |= {key: value, **({f"{key}/std": deviation[0]} if deviation else {})}
        self.adapter.open().push(values, step=env.iteration)
        if env.iteration == env.end_iteration - 1:
            self.adapter.rest()


_last: list[RunAdapter] = []


def _end_last(adapter: RunAdapter) -> None:
    """End the run of the training before, which may have stopped early: nothing else says so."""
    while _last:
        last = _last.pop()
        if last is not adapter:
            last.end()
    _last.append(adapter)
