"""Roles of keys for the detectors, by name."""

from __future__ import annotations

import tracemalloc
from array import array

import pytest

from trackside_daemon.detectors.key_roles import KeyRoles, role
from trackside_daemon.detectors.run_detectors import BestLoss
from trackside_daemon.model.columns import Columns

ALONE = [
    "loss",
    "train/loss",
    "train_loss",
    "loss/lm",
    "loss_value",
    "loss/cross_entropy",
    "cross_entropy_loss",
    "loss/mlm",
    "loss/valuable",
    "3d_loss",
    "loss/bce",
    "segmentation_loss",
    "loss/generation",
    "loss/pathology",
]

OPPOSED = [
    "d_loss",
    "D_loss",
    "train/g_loss",
    "loss_d",
    "loss/g",
    "loss/discriminator",
    "loss/generator",
    "adversarial_loss",
    "loss/critic",
    "critic/loss",
    "policy_loss",
    "train/policy_gradient_loss",
    "value_loss",
    "loss/value",
    "actor_loss",
    "entropy_loss",
    "loss/entropy",
    "loss/kl",
    "kl_loss",
    "td_loss",
    "qf1_loss",
    "loss.pg",
]


@pytest.mark.parametrize("key", ALONE)
def test_a_loss_that_is_minimised_alone(key: str) -> None:
    assert role(key) == "loss"


def test_roles_of_long_keys_need_no_memory() -> None:
    assert (role("a" * 1019 + "/loss"), role("a" * 1020 + "/loss")) == ("loss", "")
    tracemalloc.start()
    try:
        for number in range(100):
            role(f"{number}{'a' * 60_000}")
        kept = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert kept < 1_000_000, kept


def test_a_run_that_invents_keys_without_end_needs_no_memory_for_its_best_loss() -> None:
    best = BestLoss(0)
    tracemalloc.start()
    try:
        for number in range(80):
            keys = ["loss", *(f"a key of many, {number}/{key}" for key in range(500))]
            best.accept(Columns(keys, array("q", [number]), array("q", [number]), array("d", [1.0] * 501)))
        kept = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert best.text() == "last loss 1, best 1 at step 0"
    assert kept < 1_000_000, kept


@pytest.mark.parametrize("key", ["eval/loss", "val_loss", "loss/val", "test.loss", "eval/d_loss"])
def test_a_loss_of_evaluation_is_compared_with_none(key: str) -> None:
    assert role(key) == "evaluation"


@pytest.mark.parametrize("key", OPPOSED)
def test_a_loss_with_a_learnt_measure_is_compared_with_none(key: str) -> None:
    assert role(key) == "objective"


@pytest.mark.parametrize("key", ["d/grad_norm", "policy/grad_norm", "grad_norm/generator"])
def test_its_gradients_are_those_of_any_other(key: str) -> None:
    assert role(key) == "gradient"


UNKNOWN = (
    *(
        "train/entropy_loss/mean",
        "value",
        "rewards/chosen",
        "rewards/margins",
        "accuracy",
        "layer.3/grad_norm",
        "colors",
        "glossary",
    ),
    *("grad_norm/layers.3", "grad_norm_local_squared/head"),
)


@pytest.mark.parametrize("key", UNKNOWN)
def test_an_unknown_key_has_no_role(key: str) -> None:
    assert role(key) == ""


@pytest.mark.parametrize("key", ["rewards/format/mean", "train/reward/mean", "ep_rew_mean", "objective/kl"])
def test_what_is_pushed_beside_an_objective(key: str) -> None:
    assert role(key) == "return"


QUANTITIES = {
    "reward": "reward",
    "rollout/ep_rew_mean": "reward",
    "critic/rewards/mean": "reward",
    "actor/kl_loss": "kl",
    "actor/entropy_loss": "entropy",
    "learners/default_policy/mean_kl_loss": "kl",
    "train/entropy_loss": "objective",  # of Stable-Baselines3, which minimises it: the entropy is its negative
    "response_length/clip_ratio": "truncated_ratio",
    "frac_reward_zero_std": "zero_variance_ratio",
}


@pytest.mark.parametrize("key", QUANTITIES)
def test_a_quantity_of_reinforcement_learning_by_its_name_in_a_framework(key: str) -> None:
    assert role(key) == QUANTITIES[key]


def test_a_stated_role_comes_before_that_of_the_name_and_a_run_before_the_configuration() -> None:
    configured = KeyRoles([("loss", "objective"), ("*/q?", "rate"), ("a[1]", "memory")])
    assert [configured.of(key) for key in ("loss", "a/q1", "a/q12", "a[1]", "a1", "lr")] == [
        *("objective", "rate", "", "memory", "", "rate")
    ]
    run = configured.of_run({"loss": "loss", "*": "reward"})
    assert [run.stated(key) for key in ("loss", "a/q1", "a" * 2000)] == ["loss", "reward", ""]
    assert configured.of_run({}) is configured
