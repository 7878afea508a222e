"""The families of reinforcement learning, by the quantities of `trackside.rl_keys`."""

from __future__ import annotations

from trackside_daemon.model.metric import Metric
from trackside_daemon.model.training_families import RANK

_GAUGES = {
    "reward": ("Mean reward or return, under whichever key the framework pushes it.", ""),
    "reward_std": ("Standard deviation of the rewards, within the groups of one prompt where there are groups.", ""),
    "kl": ("KL divergence from the reference policy, or from the policy before the update, as pushed, in nats.", ""),
    "entropy": ("Entropy of the policy, as pushed, in nats.", ""),
    "response_length": ("Mean length of the generated responses, in tokens.", ""),
    "truncated_ratio": ("Share of the responses that the limit of the length has cut.", "ratio"),
    "zero_variance_ratio": ("Share of the groups whose rewards are all equal, so that nothing is learnt.", "ratio"),
    "train_inference_mismatch": (
        "Difference of the log probabilities or probabilities between the training and the engine that generates.",
        "",
    ),
    "importance_ratio": ("Mean importance ratio of the training to the engine that generates; 1 if equal.", "ratio"),
}

# The gauge of each quantity that is a state.
STATES = {name: Metric(f"trackside_rl_{name}", "gauge", text, RANK, unit) for name, (text, unit) in _GAUGES.items()}

# The counter of each quantity that is an amount of one step.
TOTALS = {
    "generation_seconds": Metric(
        "trackside_rl_generation_seconds_total",
        "counter",
        "Time of generation: of the rank's phases for it, or the sum of what the framework pushes.",
        RANK,
        "seconds",
    ),
    "training_seconds": Metric(
        "trackside_rl_training_seconds_total",
        "counter",
        "Time of updates: of the rank's phases for them, or the sum of what the framework pushes.",
        RANK,
        "seconds",
    ),
    "wait_seconds": Metric(
        "trackside_rl_wait_seconds_total",
        "counter",
        "Time in which the training waits for generated data: of the rank's phases for it, or the sum of what is pushed.",
        RANK,
        "seconds",
    ),
    "generated_tokens": Metric(
        "trackside_rl_generated_tokens_total", "counter", "Sum of the pushed amounts of generated tokens.", RANK
    ),
    "trained_tokens": Metric(
        "trackside_rl_trained_tokens_total", "counter", "Sum of the pushed amounts of trained tokens.", RANK
    ),
}

# The role of the phases that a counter of time is about.
PHASE_ROLES = {"generation_seconds": "generate", "training_seconds": "train", "wait_seconds": "wait"}

FAMILIES = (*STATES.values(), *TOTALS.values())
