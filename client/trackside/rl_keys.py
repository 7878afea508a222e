"""Names that frameworks of reinforcement learning use, by the quantity that they mean: the only place that has them.

It is a part of the client because the client sums the amounts, so that a restarted daemon loses none. The daemon exports the
quantities as ``trackside_rl_…`` and chooses detectors by them. Sources: the code of TRL 1.16, verl 0.7, OpenRLHF 0.9, NeMo RL
0.5, slime, Stable-Baselines3 2.9, CleanRL and RLlib (both API stacks), and columns of published logs.
"""

from typing import NamedTuple

from trackside.roles import LONGEST


class Meaning(NamedTuple):
    """The meaning of a key."""

    quantity: str  # a quantity of `KEYS` or of `AMOUNTS`
    preference: int  # of several keys of a quantity, the one with the lowest number counts
    factor: float = 1.0  # the quantity is the value times this


# KL divergences from the policy before the update, not from the reference: those of healthy runs are a hundredth of a nat.
UPDATE_KL = (
    *("train/approx_kl", "losses/approx_kl", "approx_kl", "policy/approxkl_avg", "actor/ppo_kl", "train/ppo_kl"),
    *("info/learner/*/learner_stats/kl", "info/learner/*/kl", "learners/*/mean_kl_loss"),
)

# Keys by quantity, the best first. A ``*`` stands for one part of the name between slashes: RLlib's policy.
KEYS: dict[str, tuple[str, ...]] = {
    "reward": (
        *("reward", "train/reward", "rewards", "critic/rewards/mean", "critic/score/mean", "objective/rlhf_reward"),
        *("rollout/raw_reward", "rollout/rewards", "rollout/ep_rew_mean", "charts/episodic_return", "episodic_return"),
        *("env_runners/episode_return_mean", "episode_reward_mean", "episode_return_mean", "episode_reward", "return"),
        *("train/return", "mean_reward", "objective/scores"),
    ),
    "reward_std": ("reward_std", "train/reward_std", "train/group_reward_std", "group_reward_std", "adv_std"),
    "kl": (
        *("kl", "train/kl", "actor/kl_loss", "critic/kl", "actor/reward_kl_penalty", "train/kl_penalty", "rollout/kl"),
        *("train/kl_loss", *UPDATE_KL),
    ),
    "entropy": (
        *("entropy", "train/entropy", "actor/entropy", "actor/entropy_loss", "train/approx_entropy", "losses/entropy"),
        *("policy/entropy_avg", "info/learner/*/learner_stats/entropy", "info/learner/*/entropy", "learners/*/entropy"),
        *("policy_entropy", "train/entropy_loss", "neg_entropy"),
    ),
    "response_length": (
        *("response_length", "completions/mean_length", "completion_length", "response_length/mean"),
        *(
            "train/response_length",
            "train/total_length",
            "train/mean_gen_tokens_per_sample",
            "rollout/response_lengths",
        ),
        *("rollout/response_len/mean",),
    ),
    "truncated_ratio": (
        *("completions/clipped_ratio", "clipped_ratio", "response_length/clip_ratio", "train/response_clip_ratio"),
        *("response_clip_ratio", "train/truncation_rate", "rollout/truncated", "rollout/truncated_ratio"),
    ),
    "zero_variance_ratio": ("frac_reward_zero_std", "frac_zero_std", "rollout/zero_std", "rollout/zero_std_ratio"),
    "train_inference_mismatch": (
        *("sampling/sampling_logp_difference/mean", "training/rollout_probs_diff_mean", "train/vllm_kl"),
        *("rollout_corr/log_ppl_abs_diff", "rollout_corr/k3_kl", "rollout_corr/kl", "train/gen_kl_error"),
        *("train/train_rollout_logprob_abs_diff", "train_rollout_logprob_abs_diff", "train/mismatch_kl", "mismatch_kl"),
    ),
    "importance_ratio": (
        *("sampling/importance_sampling_ratio/mean", "rollout_corr/rollout_is_mean", "train/sampling_importance_ratio"),
        *("train/tis", "mismatch/rollout_is_mean"),
    ),
}

# Keys whose value is an amount of one step. Those of a quantity are summed, as verl's times of actor and critic.
AMOUNTS: dict[str, tuple[str, ...]] = {
    "generation_seconds": (
        *("timing_s/gen", "timing/generation", "train/timing/generation", "timing/train/generation"),
        *("perf/rollout_time", "timing/rollout"),
    ),
    "training_seconds": (
        *("timing_s/update_actor", "timing_s/update_critic", "timing/ppo_train", "train/timing/ppo_train"),
        *("timing/train/policy_training", "perf/actor_train_time"),
    ),
    "wait_seconds": (
        *("timing_s/wait_prev_gen", "timing_s/wait_last_valid", "timing/train/exposed_generation"),
        *("perf/train_wait_time", "fully_async/total_wait_time"),
    ),
    "generated_tokens": ("generated_tokens", "train/generated_tokens"),
    "trained_tokens": ("perf/total_num_tokens", "train/total_num_tokens", "trained_tokens"),
}

# Phases by what the ranks do in them, of trainings that generate their own data.
PHASES: dict[str, frozenset[str]] = {
    "generate": frozenset(("generate", "generation", "gen", "rollout", "sample", "sampling")),
    "reward": frozenset(("reward", "rewards", "score", "scoring")),
    "train": frozenset(("train", "training", "update", "learn", "forward", "backward", "optimizer")),
    "weight_sync": frozenset(("weight_sync", "sync_weights", "update_weights", "refit", "broadcast")),
    "wait": frozenset(("wait", "wait_for_rollouts", "exposed_generation")),
}

# Keys of negative entropy: a loss that its framework minimises.
_NEGATIVE = frozenset(("train/entropy_loss", "neg_entropy"))

_EXACT = {
    key: Meaning(quantity, place, -1.0 if key in _NEGATIVE else 1.0)
    for table in (KEYS, AMOUNTS)
    for quantity, keys in table.items()
    for place, key in enumerate(keys)
}

# The quantity that the client sums, by key.
AMOUNT_KEYS = {key: quantity for quantity, keys in AMOUNTS.items() for key in keys}


def meaning(key: str) -> Meaning | None:
    """Return the meaning of a key; None for a key that no framework uses for one of the quantities."""
    if (exact := _EXACT.get(key)) is not None or key.count("/") < 2 or len(key) > LONGEST:
        return exact
    parts = key.split("/")
    place = 2 if parts[0] == "info" else 1
    return _EXACT.get("/".join((*parts[:place], "*", *parts[place + 1 :])))


def is_of_update(key: str) -> bool:
    """Return whether a key is a KL divergence from the policy before the update."""
    found = meaning(key)
    return found is not None and found.quantity == "kl" and KEYS["kl"][found.preference] in UPDATE_KL


def phase_role(phase: str) -> str:
    """Return what ranks do in a phase, one of `PHASES`; empty for another phase."""
    return next((role for role, phases in PHASES.items() if phase in phases), "")
