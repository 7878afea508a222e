"""Keys of frameworks of reinforcement learning: each is one of our quantities, or is listed here as none."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import pytest

from trackside.rl_keys import AMOUNT_KEYS, meaning, phase_role

SHARED = Path(os.environ.get("TRACKSIDE_SHARED_DATA") or Path(__file__).parents[3] / "shared" / "data") / "dev"

# The quantity by key, of logs of each framework; what is empty is no quantity of ours.
FRAMEWORKS = {
    "TRL": {
        "reward": "reward",
        "reward_std": "reward_std",
        "kl": "kl",
        "entropy": "entropy",
        "completions/mean_length": "response_length",
        "completions/clipped_ratio": "truncated_ratio",
        "frac_reward_zero_std": "zero_variance_ratio",
        "sampling/sampling_logp_difference/mean": "train_inference_mismatch",
        "sampling/importance_sampling_ratio/mean": "importance_ratio",
        "objective/rlhf_reward": "reward",
        "policy/approxkl_avg": "kl",
        **dict.fromkeys(("num_tokens", "completions/max_length", "clip_ratio/region_mean", "rewards/chosen"), ""),
        **dict.fromkeys(("sampling/sampling_logp_difference/max", "rewards/margins", "objective/kl", "epoch"), ""),
    },
    "verl": {
        "critic/rewards/mean": "reward",
        "critic/score/mean": "reward",
        "actor/kl_loss": "kl",
        "actor/ppo_kl": "kl",
        "actor/entropy": "entropy",
        "response_length/mean": "response_length",
        "response_length/clip_ratio": "truncated_ratio",
        "training/rollout_probs_diff_mean": "train_inference_mismatch",
        "rollout_corr/rollout_is_mean": "importance_ratio",
        "timing_s/gen": "generation_seconds",
        "timing_s/update_actor": "training_seconds",
        "timing_s/update_critic": "training_seconds",
        "timing_s/wait_prev_gen": "wait_seconds",
        "perf/total_num_tokens": "trained_tokens",
        **dict.fromkeys(("critic/rewards/max", "actor/pg_clipfrac", "prompt_length/mean", "perf/throughput"), ""),
        **dict.fromkeys(("timing_s/step", "timing_per_token_ms/gen", "actor/grad_norm", "critic/advantages/mean"), ""),
    },
    "OpenRLHF": {
        "train/reward": "reward",
        "train/return": "reward",
        "train/kl": "kl",
        "train/response_length": "response_length",
        "train/vllm_kl": "train_inference_mismatch",
        "train/group_reward_std": "reward_std",
        **dict.fromkeys(("train/policy_loss", "train/critic_loss", "train/actor_lr", "train/act_loss"), ""),
    },
    "NeMo RL": {
        "train/reward": "reward",
        "train/kl_penalty": "kl",
        "train/approx_entropy": "entropy",
        "train/mean_gen_tokens_per_sample": "response_length",
        "train/gen_kl_error": "train_inference_mismatch",
        "train/sampling_importance_ratio": "importance_ratio",
        "timing/train/generation": "generation_seconds",
        "timing/train/policy_training": "training_seconds",
        "timing/train/exposed_generation": "wait_seconds",
        **dict.fromkeys(("train/lr", "train/wd", "validation/accuracy", "timing/train/total_step_time"), ""),
    },
    "slime": {
        "rollout/raw_reward": "reward",
        "rollout/zero_std": "zero_variance_ratio",
        "train/train_rollout_logprob_abs_diff": "train_inference_mismatch",
        "timing/rollout": "generation_seconds",
        "perf/wait_time_ratio": "",
    },
    "Stable-Baselines3": {
        "rollout/ep_rew_mean": "reward",
        "train/approx_kl": "kl",
        "train/entropy_loss": "entropy",
        **dict.fromkeys(("rollout/ep_len_mean", "train/clip_fraction", "train/explained_variance", "time/fps"), ""),
    },
    "CleanRL": {
        "charts/episodic_return": "reward",
        "losses/approx_kl": "kl",
        "losses/entropy": "entropy",
        **dict.fromkeys(("charts/SPS", "losses/old_approx_kl", "losses/clipfrac", "charts/episodic_length"), ""),
    },
    "RLlib": {
        "env_runners/episode_return_mean": "reward",
        "episode_reward_mean": "reward",
        "learners/default_policy/mean_kl_loss": "kl",
        "learners/default_policy/entropy": "entropy",
        "info/learner/default_policy/learner_stats/kl": "kl",
        **dict.fromkeys(("learners/__all_modules__/num_env_steps_trained", "env_runners/num_episodes"), ""),
    },
}

# Columns of published logs that are no quantity of ours.
UNMAPPED = frozenset(
    ("rl_loss", "value_loss", "grad_norm", "lr", "ratio_clip_frac", "ratio", "throughput", "step_time", "length")
)
RUNS = [
    path for name in ("trl_grpo", "grpo_reasoning", "verl_*", "rllib", "gail_ppo") for path in SHARED.glob(f"{name}/*")
]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_each_key_of_a_framework_has_its_quantity_or_none(framework: str) -> None:
    found = {key: one.quantity if (one := meaning(key)) else "" for key in FRAMEWORKS[framework]}
    assert found == FRAMEWORKS[framework]


def test_each_column_of_the_labelled_logs_is_mapped_or_listed() -> None:
    keys = {key for path in RUNS for key in next(csv.reader(path.read_text(encoding="utf-8").splitlines()))}
    assert not {key for key in keys - {"step", "time"} if (meaning(key) is None) != (key in UNMAPPED)}


def test_an_entropy_that_is_minimised_is_negative_and_one_key_has_one_meaning() -> None:
    minimised = meaning("train/entropy_loss")
    assert minimised is not None
    assert (minimised.quantity, minimised.factor) == ("entropy", -1.0)
    assert not {
        key for key, quantity in AMOUNT_KEYS.items() if (one := meaning(key)) is None or one.quantity != quantity
    }
    assert meaning("a/b/" + "c" * 2000) is None


def test_phases_have_a_role() -> None:
    assert [phase_role(one) for one in ("rollout", "reward", "backward", "refit", "wait", "eval")] == [
        *("generate", "reward", "train", "weight_sync", "wait", ""),
    ]
