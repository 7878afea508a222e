"""Detectors of reinforcement learning: what each finds, what it leaves alone, and that batches change nothing."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from detectors.test_rank_watch import block, findings_of, ingested, opened

from trackside_daemon.detectors.base import Column, Context
from trackside_daemon.detectors.rank_detectors import RankDetectors
from trackside_daemon.detectors.rank_watch import RankWatch
from trackside_daemon.detectors.rl import RewardCollapse

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Change = tuple[str, str, int, bool]

STEPS = 240


def around(level: float, noise: float, count: int, seed: int = 0) -> list[float]:
    draw = random.Random(seed)
    return [level + draw.gauss(0, noise) for _ in range(count)]


HEALTHY = {
    "reward": [0.2 + 0.6 * step / STEPS + noise for step, noise in enumerate(around(0, 0.1, STEPS))],
    "reward_std": around(0.3, 0.05, STEPS, 1),
    "kl": [0.2 * step / STEPS + abs(noise) for step, noise in enumerate(around(0, 0.02, STEPS, 2))],
    "entropy": around(1.2, 0.1, STEPS, 3),
    "completions/mean_length": [200 + 0.5 * step + noise for step, noise in enumerate(around(0, 15, STEPS, 4))],
    "completions/clipped_ratio": [abs(one) for one in around(0.1, 0.08, STEPS, 5)],
    "frac_reward_zero_std": [min(1.0, abs(one)) for one in around(0.4, 0.2, STEPS, 6)],
    "sampling/sampling_logp_difference/mean": around(0.02, 0.004, STEPS, 7),
    "sampling/importance_sampling_ratio/mean": around(1.0, 0.03, STEPS, 8),
    "loss": around(0.0, 0.3, STEPS, 9),
}
ILL = 150  # step at which each fault begins

# The alert, its severity, and the step up to which it must fire, by what goes wrong with which key.
FAULTS: dict[str, tuple[str, list[float], str, str, int]] = {
    "equal rewards": ("frac_reward_zero_std", [1.0] * 90, "NoLearningSignal", "warning", 170),
    "no spread": ("reward_std", [0.0] * 90, "NoLearningSignal", "warning", 182),
    "cut responses": ("completions/clipped_ratio", [0.8] * 90, "TruncationRising", "warning", 156),
    "long responses": ("completions/mean_length", around(600, 15, 90), "TruncationRising", "info", 180),
    "stale weights": (
        *("sampling/sampling_logp_difference/mean", around(0.2, 0.02, 90)),
        *("TrainInferenceMismatch", "warning", 156),
    ),
    "importance ratios collapse": (
        *("sampling/importance_sampling_ratio/mean", around(0.2, 0.02, 90)),
        *("TrainInferenceMismatch", "warning", 160),
    ),
    "policy runs away": ("kl", [0.2 * 1.1**step for step in range(90)], "KlBlowup", "warning", 180),
    "policy forgets": ("reward", around(0.1, 0.05, 90), "RewardCollapse", "warning", 185),
    "entropy falls": ("entropy", around(0.1, 0.02, 90), "EntropyCollapse", "info", 175),
}


def changes(columns: Mapping[str, Sequence[float]], size: int = 1) -> list[Change]:
    """Return alert, key, step and whether it is over, of columns that arrive *size* rows at a time."""
    rank, found = RankDetectors(), []
    length = len(next(iter(columns.values())))
    for first in range(0, length, size):
        steps = range(first, min(first + size, length))
        rows = {key: Column(steps, steps, values[first : first + size]) for key, values in columns.items()}
        found += [(one.alert, key, first + one.at, one.over) for key, one in rank.evaluate(rows)]
    return sorted(found)


def severities(columns: Mapping[str, Sequence[float]]) -> set[str]:
    rank = RankDetectors()
    steps = range(STEPS)
    return {one.severity for _, one in rank.evaluate({key: Column(steps, steps, v) for key, v in columns.items()})}


def test_nothing_fires_on_a_policy_that_learns() -> None:
    assert changes(HEALTHY) == []


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_soon_and_under_its_name(fault: str) -> None:
    key, values, alert, severity, until = FAULTS[fault]
    columns = {**HEALTHY, key: [*HEALTHY[key][:ILL], *values]}
    found = changes(columns)
    assert [(one[0], one[1], one[3]) for one in found] == [(alert, key, False)]
    assert ILL <= found[0][2] <= until
    assert severities(columns) == {severity}
    assert changes(columns, 50) == found


@pytest.mark.parametrize("fault", [one for one in FAULTS if FAULTS[one][3] == "warning"])
def test_an_alert_ends_when_its_fault_does(fault: str) -> None:
    key, values, alert, *_ = FAULTS[fault]
    columns = {name: [*well, *well[-90:]] for name, well in HEALTHY.items()}
    columns[key] = [*HEALTHY[key][:ILL], *values[:60], *HEALTHY[key][-120:]]
    assert [(one[0], one[3]) for one in changes(columns)] == [(alert, False), (alert, True)]


def test_an_entropy_that_stays_is_accepted() -> None:
    columns = {name: [*well[:ILL], *(2 * well)[ILL : ILL + 200]] for name, well in HEALTHY.items()}
    columns["entropy"] = [*HEALTHY["entropy"][:ILL], *around(0.1, 0.02, 200)]
    steps, rank = range(ILL + 200), RankDetectors()
    found = [one for _, one in rank.evaluate({key: Column(steps, steps, values) for key, values in columns.items()})]
    assert [(one.over, one.accepted) for one in found if one.alert == "EntropyCollapse"] == [
        (False, False),
        (True, True),
    ]


def test_a_divergence_without_another_quantity_is_one_of_another_training() -> None:
    values = [*HEALTHY["kl"][:ILL], *FAULTS["policy runs away"][1]]
    assert changes({"kl": values}) == []


def test_of_several_keys_only_the_best_one_counts() -> None:
    """The reward of the critic is also pushed as a score."""
    ill = [*HEALTHY["reward"][:ILL], *FAULTS["policy forgets"][1]]
    assert {one[1] for one in changes({"critic/score/mean": ill, "critic/rewards/mean": ill})} == {
        "critic/rewards/mean"
    }


def swinging(seed: int, count: int = 3000) -> list[float]:
    """Return a reward that rises by 70 and swings by 25 around that for some dozens of samples, with noise of 15."""
    draw, off, rewards = random.Random(seed), 0.0, []
    for step in range(count):
        off = 0.97 * off + draw.gauss(0, 1)
        rewards.append(-120 + 70 * (1 - 1 / (1 + step / 300)) + 6 * off + 15 * draw.gauss(0, 1))
    return rewards


def collapses(rewards: Sequence[float]) -> list[tuple[str, int]]:
    steps = range(len(rewards))
    found = RewardCollapse().evaluate(Column(steps, steps, rewards), Context())
    return [(one.severity, one.at) for one in found if not one.over]


def test_a_reward_that_swings_is_hardly_ever_reported_and_not_for_each_swing() -> None:
    found = [one for seed in range(20) for one in collapses(swinging(seed))]
    assert len(found) <= 20
    assert [severity for severity, _ in found].count("warning") <= 3


def test_a_swinging_reward_that_loses_all_is_reported() -> None:
    rewards = [*swinging(5, 1500), *around(-200, 15, 200)]
    assert [severity for severity, at in collapses(rewards) if 1500 < at < 1560][-1:] == ["warning"]


@pytest.mark.parametrize(("beside", "words"), [("completions/mean_length", "Read some answers."), ("kl", "Check the")])
def test_the_advice_speaks_of_answers_only_to_a_policy_that_gives_some(beside: str, words: str) -> None:
    columns = {"reward": [*HEALTHY["reward"][:ILL], *around(0.1, 0.05, 90)], beside: HEALTHY[beside]}
    found = findings_of(RankWatch(), opened(), ingested(block(0, columns)))
    (collapse,) = [one for one in found if one.alert == "RewardCollapse"]
    assert collapse.description.startswith(words)


LOSSES = {
    "rises": [0.001 * 1.05**step for step in range(STEPS)],
    "jumps": [*around(0.1, 0.01, ILL), *around(50, 5, 90)],
    "is negative": around(-3, 2, STEPS),
}


@pytest.mark.parametrize("course", LOSSES)
def test_the_loss_of_a_policy_has_no_usual_course(course: str) -> None:
    assert changes({"loss": LOSSES[course], "reward": HEALTHY["reward"]}) == []
