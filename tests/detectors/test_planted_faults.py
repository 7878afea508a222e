"""Real tiny runs of GRPO and PPO, each with a planted fault or with none; `bench/rl.py` has the shares that are found."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from processes import require
from tiny_policies import GRPO_FAULTS, ONSET, PPO_FAULTS, grpo, ppo

from trackside_daemon.detectors.replay import PushedRow, Replay

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Training = Callable[[int, str], Iterator[dict[str, float]]]

require("torch")

NAMED = {
    "zero_variance": {"NoLearningSignal"},
    "limit": {"TruncationRising"},
    "no_kl": {"KlBlowup", "NoLearningSignal", "RewardCollapse"},  # a policy that repeats one answer gets equal rewards
    "rate": {"KlBlowup", "RewardCollapse", "LearningRateOutOfRange"},
    "reward_model": {"RewardCollapse"},
    "stale": {"TrainInferenceMismatch"},
}


def alerts(train: Training, seed: int, fault: str = "") -> dict[str, int]:
    """Return the first step of each alert above info."""
    replay = Replay()
    first: dict[str, int] = {}
    for step, values in enumerate(train(seed, fault)):
        for one in replay.evaluate(PushedRow(step, 0, 0, step, float(step), "", values)):
            if one.severity != "info" and one.state == "firing":
                first.setdefault(one.alert, step)
    return first


@pytest.mark.parametrize("fault", GRPO_FAULTS)
def test_a_fault_of_grpo_is_named_after_it_began(fault: str, count: Callable[[int, int], int]) -> None:
    for seed in range(count(1, 6)):
        found = alerts(grpo, seed, fault)
        assert found
        assert found.keys() <= NAMED[fault]
        assert min(found.values()) >= ONSET


def test_a_healthy_policy_raises_nothing(count: Callable[[int, int], int]) -> None:
    assert [alerts(grpo, seed) for seed in range(count(1, 6))] == [{}] * count(1, 6)


def test_ppo_is_named_or_silent_as_well(request: pytest.FixtureRequest, count: Callable[[int, int], int]) -> None:
    """A raised rate may do no harm: three of five runs must be found."""
    if not request.config.getoption("--soak"):
        pytest.skip("fifteen runs take a minute: only under --soak")
    runs = count(5, 5)
    assert [alerts(ppo, seed) for seed in range(runs)] == [{}] * runs
    for fault, least in zip(PPO_FAULTS, (3, runs), strict=True):
        found = [alerts(ppo, seed, fault) for seed in range(runs)]
        assert all(one.keys() <= NAMED[fault] and min(one.values(), default=ONSET) >= ONSET for one in found)
        assert sum(map(bool, found)) >= least
