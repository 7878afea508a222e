"""Thresholds of the detectors: set for a live run and for a replay, or left at their defaults."""

from __future__ import annotations

import pytest
from detectors.losses import falling
from detectors.running import Running

from trackside_daemon.detectors.replay import PushedRow, Replay
from trackside_daemon.detectors.settings import DetectorThresholds

RESTING = [1.0 + 0.001 * (step % 7) for step in range(1500)]
STEPS = [0.1 + 0.001 * (step % 5) for step in range(200)]


def alerts(key: str, values: list[float], **thresholds: float) -> set[str]:
    replay = Replay(thresholds=DetectorThresholds(**thresholds))
    beside = {} if key in {"loss", "reward"} else {"reward": 1.0}
    rows = (
        PushedRow(place, 0, 0, place, float(place), "", {key: value, **beside}) for place, value in enumerate(values)
    )
    return {change.alert for row in rows for change in replay.evaluate(row)}


@pytest.mark.parametrize(
    ("alert", "key", "values", "milder", "stricter"),
    [
        ("LossSpike", "loss", [*falling(300), 6.0, 6.0, 6.0, 6.0], {"loss_spike_ratio": 100}, {}),
        ("LossSpike", "loss", [*falling(300), 6.0, 6.0, 6.0, 6.0], {"loss_spike_scales": 1e5}, {}),
        (
            "LossDiverging",
            "loss",
            [*RESTING[:100], *(1.3 * loss for loss in RESTING[:100])],
            {"loss_diverging_ratio": 1},
            {},
        ),
        ("LossPlateau", "loss", RESTING, {"loss_plateau_ratio": 0}, {}),
        ("GradientExplosion", "grad_norm", [*RESTING[:100], 50.0], {"gradient_explosion_ratio": 100}, {}),
        ("GradientVanishing", "grad_norm", [*RESTING[:600], *[0.05] * 30], {"gradient_vanishing_ratio": 50}, {}),
        ("LearningRateOutOfRange", "lr", [0.1, 20.0], {"learning_rate_most": 30}, {}),
        ("LearningRateOutOfRange", "lr", [1e-3] * 9 + [1e-9] * 1100, {"learning_rate_least": 0}, {}),
        ("LearningRateOutOfRange", "lr", [1e-3] * 12 + [0.5], {"learning_rate_jump_ratio": 1000}, {}),
        ("SlowStep", "step_duration_seconds", [*STEPS, 0.12], {}, {"slow_step_ratio": 1.15}),
        ("SlowStep", "step_duration_seconds", [*STEPS, 0.3], {"slow_step_scales": 1000}, {}),
        (
            "ThroughputRegression",
            "step_duration_seconds",
            [*STEPS, *(1.2 * one for one in STEPS)],
            {"throughput_ratio": 1.3},
            {},
        ),
        (
            "HostMemoryLeak",
            "process_resident_bytes",
            [1e9 * (1 + step / 200) for step in range(120)],
            {"leak_ratio": 0.9},
            {},
        ),
        ("NoLearningSignal", "frac_reward_zero_std", [0.85] * 20, {"no_signal_ratio": 0.9}, {}),
        ("TruncationRising", "completions/clipped_ratio", [0.6] * 10, {"truncated_ratio": 0.7}, {}),
        ("TrainInferenceMismatch", "mismatch_kl", [0.5] * 10, {"mismatch_most": 0.6}, {}),
        ("TrainInferenceMismatch", "rollout_corr/rollout_is_mean", [0.4] * 20, {"importance_ratio_most": 3}, {}),
        ("KlBlowup", "actor/kl_loss", [*[0.1] * 50, *[0.9] * 20], {}, {"kl_most": 0.5}),
        ("KlBlowup", "train/approx_kl", [*[0.04] * 50, *[0.3] * 20], {"update_kl_most": 0.4}, {}),
        ("RewardCollapse", "reward", [*[1.0] * 160, *[0.4] * 60], {"reward_collapse_ratio": 0.7}, {}),
    ],
)
def test_a_threshold_has_an_effect_in_a_replay(
    alert: str, key: str, values: list[float], milder: dict[str, float], stricter: dict[str, float]
) -> None:
    assert alert in alerts(key, values, **stricter)
    assert alert not in alerts(key, values, **milder)


def test_those_of_runs_have_an_effect() -> None:
    for settings, found in ((DetectorThresholds(), True), (DetectorThresholds(straggler_ratio=3), False)):
        run = Running(4, thresholds=settings)
        for step in range(1, 1500):
            for rank in range(4):
                run.push(step, rank, phases={"forward": step * (0.5 if rank else 1.0), "sync": step * 0.2})
            run.wait(1)
        assert bool(run.findings_of("StragglerRank")) is found
    for settings, found in ((DetectorThresholds(), True), (DetectorThresholds(data_wait_ratio=0.9), False)):
        run = Running(thresholds=settings)
        for step in range(1, 400):
            run.push(step, wait=step * 0.5)
            run.wait(1)
        assert bool(run.findings_of("DataLoaderBottleneck")) is found
    milder = (DetectorThresholds(checkpoint_after=3000), DetectorThresholds(checkpoint_ratio=100))
    for settings, found in ((DetectorThresholds(), True), *((one, False) for one in milder)):
        run = Running(thresholds=settings)
        for step in range(1, 1100):
            run.push(step)
            if step in (100, 150, 200):
                run.report("checkpoint", 0)
            run.wait(1)
        assert bool(run.findings_of("CheckpointOverdue")) is found
