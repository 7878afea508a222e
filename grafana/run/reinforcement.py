"""Panels about reinforcement learning."""

from __future__ import annotations

from grafana.board import Row
from grafana.panels import Query, lines

NONE = "no reinforcement learning"


def row() -> Row:
    """Return the row, which is empty for other trainings."""
    return Row("Reinforcement learning", *_policy(), *_responses(), collapsed=True)


def _mean(*names: str) -> list[Query]:
    return [Query(f"avg(trackside_rl_{name}{{RANK}})", name.replace("_", " ")) for name in names]


def _policy() -> list[object]:
    return [
        lines(
            "Reward",
            "Mean reward, and its spread within groups, as means over the ranks. RewardCollapse is a fall for good. Without spread, "
            "nothing is learnt: NoLearningSignal.",
            "none",
            *_mean("reward", "reward_std"),
            empty=NONE,
        ),
        lines(
            "KL divergence and entropy",
            "Divergence from the reference, or from the policy before the update, and entropy of the policy. A divergence that "
            "multiplies is KlBlowup. Entropy falls in healthy runs too.",
            "none",
            *_mean("kl", "entropy"),
            empty=NONE,
        ),
        lines(
            "Training against generation",
            "Difference of the log probabilities between the training and the engine that generates. One that leaves the noise of "
            "the run is TrainInferenceMismatch.",
            "none",
            *_mean("train_inference_mismatch"),
            empty=NONE,
        ),
        lines(
            "Importance ratio",
            "Mean importance ratio of the training to the engine that generates, 100 % if they agree. Below a half or above twice that, "
            "it is TrainInferenceMismatch.",
            "percentunit",
            *_mean("importance_ratio"),
            empty=NONE,
        ),
    ]


def _responses() -> list[object]:
    return [
        lines(
            "Response length",
            "Mean length of the responses in tokens. A sudden growth often ends at the limit.",
            "none",
            *_mean("response_length"),
            empty=NONE,
            minimum=0,
        ),
        lines(
            "Cut responses and groups without signal",
            "Share of the responses that the limit cuts, and of the groups whose rewards are all equal. From 0.5 and 0.8 on: "
            "TruncationRising, NoLearningSignal.",
            "percentunit",
            *_mean("truncated_ratio", "zero_variance_ratio"),
            empty=NONE,
            minimum=0,
            maximum=1,
        ),
        lines(
            "Time by role",
            "Share of the time in which ranks generate, train, or wait for samples. GPUs that are idle while others generate are a part "
            "of the schedule: move GPUs to the role that takes longest, or overlap the two.",
            "percentunit",
            *(
                Query(f"avg(rate(trackside_rl_{role}_seconds_total{{RANK}}[$__rate_interval]))", role)
                for role in ("generation", "training", "wait")
            ),
            stacked=True,
            empty=NONE,
            minimum=0,
        ),
    ]
