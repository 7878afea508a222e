"""The logger for frameworks of reinforcement learning, called as their trackers call their loggers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from trackside.integrations.rl_logger import RlLogger

if TYPE_CHECKING:
    from trackside.run import Run


class FakeRun:
    """A run that keeps what is pushed."""

    def __init__(self) -> None:
        self.pushed: list[tuple[int | None, dict[str, Any]]] = []

    def push(self, values: dict[str, Any], step: int | None = None) -> None:
        self.pushed.append((step, values))


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> FakeRun:
    fake = FakeRun()

    def opened(_: Any) -> Run | FakeRun:
        return fake

    monkeypatch.setattr("trackside.integrations.run_adapter.RunAdapter.open", opened)
    return fake


def test_verl_calls_it_with_names_of_arguments(run: FakeRun) -> None:
    RlLogger().log(data={"critic/rewards/mean": 0.5, "examples": ["text"]}, step=3, backend=None)
    assert run.pushed == [(3, {"critic/rewards/mean": 0.5})]


def test_openrlhf_separates_training_and_evaluation(run: FakeRun) -> None:
    logger = RlLogger()
    logger.log_train(4, {"reward": 1, "generated_samples": ["a", "b"]})
    logger.log_eval(4, {"score": 2.0})
    logger.close()
    assert run.pushed == [(4, {"train/reward": 1}), (4, {"eval/score": 2.0})]


def test_nemo_rl_gives_a_prefix(run: FakeRun) -> None:
    logger = RlLogger()
    logger.log_hyperparams({"grpo": {"num_prompts_per_step": 8}})
    logger.log_metrics({"generation": 2.5}, 7, "timing/train", None, step_finished=True)
    logger.log_metrics({"reward": 0.1}, 7, prefix="train")
    logger.log_histogram([1, 2], 7, "weights")
    logger.log_plot(object(), 7, "curve")
    assert run.pushed == [(7, {"timing/train/generation": 2.5}), (7, {"train/reward": 0.1})]


def test_what_a_framework_gives_never_ends_its_training(run: FakeRun) -> None:
    RlLogger().log(data=None, step=1)  # type: ignore[arg-type]
    assert run.pushed == []
