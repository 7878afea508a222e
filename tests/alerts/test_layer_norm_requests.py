"""Requests for layer norms, and their least interval."""

from __future__ import annotations

from dataclasses import replace

from trackside_daemon.alerts.layer_norm_requests import AGAIN_SECONDS, MAX_RUNS, STEPS, LayerNormRequests
from trackside_daemon.model.metric import Batch
from trackside_daemon.model.records import Alert


def test_requests_to_a_run_are_limited() -> None:
    now, asked = [1000.0], []
    layers = LayerNormRequests(lambda run, steps: asked.append((run, steps)), clock=lambda: now[0])
    spike = Alert("LossSpike", "warning", 1.0, "id-1", {"rank": "0"})
    layers.accept(Batch("alerts", records=[spike, replace(spike, alert="NonFinite")]))
    layers.accept(Batch("alerts", records=[replace(spike, alert="SlowStep", run="id-2"), replace(spike, run="")]))
    layers.accept(Batch("alerts", records=[replace(spike, ended=2.0, run="id-3")]))
    assert asked == [("id-1", STEPS)]
    now[0] += AGAIN_SECONDS - 1
    layers.accept(Batch("alerts", records=[spike]))
    now[0] += 1
    layers.accept(Batch("alerts", records=[spike]))
    assert asked == [("id-1", STEPS)] * 2
    several = [replace(spike, run=f"run {number}") for number in range(MAX_RUNS + 1)]
    layers.accept(Batch("alerts", records=several))
    assert len(asked) == 2 + MAX_RUNS + 1
    layers.accept(Batch("alerts", records=[several[-1], several[0]]))
    assert asked[2 + MAX_RUNS + 1 :] == [("run 0", STEPS)], "the first was forgotten for the last"
    again = LayerNormRequests(lambda run, steps: asked.append((run, steps)), [spike], clock=lambda: now[0])
    again.accept(Batch("alerts", records=[spike]))
    assert len(asked) == 2 + MAX_RUNS + 2
