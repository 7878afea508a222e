"""The quantities of reinforcement learning in the document of a run."""

from __future__ import annotations

from typing import Any

from trackside_daemon.history.read.reader import reinforcement


def summaries(**means: float | str) -> list[dict[str, Any]]:
    return [{"key": key, "mean": mean, "count": 11, "nonfinite": 1} for key, mean in means.items()]


def test_the_best_key_of_each_quantity_counts_and_phases_give_the_roles() -> None:
    found = summaries(**{"critic/score/mean": 1.0, "critic/rewards/mean": 1.0, "train/entropy_loss": -1.0, "loss": 2.0})
    phases = {"0": {"generate": 6.0, "forward": 1.0, "data": 9.0}, "1": {"rollout": 2.0, "backward": 1.0}}
    assert reinforcement(found, [{"phases": phases}, {}]) == {
        "quantities": {
            "reward": {"key": "critic/rewards/mean", "factor": 1.0},
            "entropy": {"key": "train/entropy_loss", "factor": -1.0},
        },
        "roles": {"generate": 8.0, "train": 2.0},
    }


def test_pushed_times_give_the_roles_where_no_phase_generates() -> None:
    times: dict[str, float | str] = {
        "timing_s/gen": 3.0,
        "timing_s/update_actor": 1.0,
        "timing_s/update_critic": 0.5,
        "perf/train_wait_time": "nan",
    }
    found = reinforcement(summaries(reward=1.0, **times), [{"phases": {"0": {"forward": 9.0}}}])
    assert found is not None
    assert found["roles"] == {"generate": 30.0, "train": 15.0}


def test_a_divergence_or_an_entropy_alone_is_one_of_another_training() -> None:
    assert reinforcement(summaries(kl=1.0, entropy=1.0, loss=1.0), []) is None
