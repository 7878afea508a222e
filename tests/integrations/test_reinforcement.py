"""GRPO of TRL and PPO of Stable-Baselines3, by the examples, and Hydra. They are large, so that only `make soak` installs them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from integrations.trainings import Trained, trained
from processes import ROOT, require

if TYPE_CHECKING:
    from collections.abc import Iterator

for library in ("trl", "stable_baselines3", "hydra", "torch"):
    require(library)


@pytest.fixture(scope="module")
def found() -> Iterator[Trained]:
    """A healthy GRPO, one whose rewards become equal, one with a limit that cuts the answers, PPO, and a Hydra script."""
    grpo = f"{ROOT}/examples/grpo_trl.py"
    with trained(
        (grpo, "--name=healthy"),
        (grpo, "--name=equal", "--equal-rewards"),
        (grpo, "--name=cut", "--limit=3"),
        (f"{ROOT}/examples/sb3_ppo.py", "--steps=12000"),
        ("{root}/tests/public/hydra_config.py",),
    ) as results:
        yield results


@pytest.mark.parametrize(
    ("name", "alert"), [("equal", "NoLearningSignal"), ("cut", "TruncationRising"), ("healthy", "")]
)
def test_each_fault_has_its_alert_and_the_healthy_twin_none(found: Trained, name: str, alert: str) -> None:
    assert {one.partition('alert="')[2].partition('"')[0] for one in found.alarms(name)} == (
        {alert} if alert else set()
    )


def test_quantities_and_phases_of_ppo(found: Trained) -> None:
    page = found.daemon.series()
    labels = '{rank="0",run="sb3-ppo"}'
    assert page[f"trackside_rl_reward{labels}"] > 20
    assert page[f"trackside_rl_entropy{labels}"] > 0
    assert page[f"trackside_rl_generation_seconds_total{labels}"] > 0
    assert page[f"trackside_rl_training_seconds_total{labels}"] > 0


def test_a_configuration_of_hydra_is_stored_and_the_callback_is_a_target(found: Trained) -> None:
    assert found.printed[4].split() == ["TracksideCallback"]
    assert found.config("hydra")["twice"] == 0.1
