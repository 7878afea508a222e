"""The families of reinforcement learning, by the quantities of `trackside.rl_keys`."""

from trackside_daemon.model.families.training import RANK
from trackside_daemon.model.metric import define

_GAUGES = {
    "reward": "Mean reward or return; under whichever key the framework pushes it.",
    "reward_std": "Standard deviation of the rewards; within the groups of one prompt where there are groups.",
    "kl": "KL divergence from the reference policy, or from the policy before the update, as pushed, in nats.",
    "entropy": "Entropy of the policy, as pushed, in nats.",
    "response_length": "Mean length of the generated responses, in tokens.",
    "truncated_ratio": "Share of the responses that the length limit has cut.",
    "zero_variance_ratio": "Share of the groups whose rewards are all equal; nothing is learnt from them.",
    "train_inference_mismatch": ("Difference of the (log) probabilities of training and generation."),
    "importance_ratio": "Mean importance ratio of training to generation; 1 if equal.",
}

# The gauge of each quantity that is a state.
STATES = {name: define(f"trackside_rl_{name}", text, *RANK) for name, text in _GAUGES.items()}

# The counter of each quantity that is an amount of one step.
TOTALS = {
    "generation_seconds": define(
        "trackside_rl_generation_seconds_total",
        "Time of generation; of the rank's phases for it, or the sum of what the framework pushes.",
        *RANK,
    ),
    "training_seconds": define(
        "trackside_rl_training_seconds_total",
        "Time of updates; of the rank's phases for them, or the sum of what the framework pushes.",
        *RANK,
    ),
    "wait_seconds": define(
        "trackside_rl_wait_seconds_total",
        "Time in which the training waits for generated data; of the rank's phases for it, or the sum of what is "
        "pushed.",
        *RANK,
    ),
    "generated_tokens": define(
        "trackside_rl_generated_tokens_total", "Sum of the pushed amounts of generated tokens.", *RANK
    ),
    "trained_tokens": define(
        "trackside_rl_trained_tokens_total", "Sum of the pushed amounts of trained tokens.", *RANK
    ),
}

# The role of the phases that a counter of time is about.
PHASE_ROLES = {"generation_seconds": "generate", "training_seconds": "train", "wait_seconds": "wait"}
