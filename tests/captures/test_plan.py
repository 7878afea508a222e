"""Planned profiles: after epochs have begun, after warm-up steps, once each."""

from __future__ import annotations

import os
from typing import Any

import pytest
from omegaconf import OmegaConf

import trackside
from trackside.default_run import plan
from trackside.wire import ProfilePlan
from trackside_daemon.captures.automatic import PlannedCaptures
from trackside_daemon.captures.captures import CaptureError, CaptureRequest
from trackside_daemon.model.capture import ProfileOptions
from trackside_daemon.model.families.training import KNOWN, STEPS
from trackside_daemon.model.metric import Batch, Sample
from trackside_daemon.model.rank_process import RankProcess
from trackside_daemon.model.state import State

OWN = f"uid:{os.getuid()}"


class Planned:
    """A run on this machine, whose steps and epochs the test sets."""

    def __init__(self, own: ProfilePlan | None, default: ProfilePlan | None = None) -> None:
        self.asked: list[CaptureRequest] = []
        self.processes = [
            RankProcess("train", "id-1", 2, rank, rank, "", 17 + rank, plan=own, owner=OWN) for rank in (1, 0)
        ]
        self._state = State()
        self._planned = PlannedCaptures(self._ask, lambda: self.processes, self._state, default)

    def _ask(self, request: CaptureRequest) -> Any:
        self.asked.append(request)
        raise CaptureError("4 captures run already")  # costs this one alone

    def at(self, steps: int, epoch: float | None = None) -> int:
        """Set what rank 0 has pushed; return the number of profiles so far."""
        samples = [Sample(STEPS, ("train", "0"), steps)]
        samples += [] if epoch is None else [Sample(KNOWN["epoch"], ("train", "0"), epoch)]
        self._state.update(Batch("training", samples))
        self._planned.tick()
        return len(self.asked)


def test_epochs_are_profiled_some_steps_after_their_begin_and_once() -> None:
    planned = Planned(ProfilePlan(50, 5, (1, 3), shapes=True))
    assert [planned.at(steps, steps / 100) for steps in (10, 99, 100, 104, 105, 150, 300, 304)] == [
        0,
        0,
        0,
        0,
        1,
        1,
        1,
        1,
    ]
    assert planned.at(310, 3.1) == planned.at(400, 4.0) == 2
    options = ProfileOptions(50, None, shapes=True)
    assert planned.asked[0] == CaptureRequest("id-1", 2, trigger="plan", options=options)


def test_an_epoch_that_a_later_daemon_has_missed_is_left_out() -> None:
    planned = Planned(ProfilePlan(10, 0, (0, 2)))
    assert [planned.at(500, 1.5), planned.at(600, 2.1)] == [0, 1]


def test_without_epochs_the_run_is_profiled_once_and_another_attempt_again() -> None:
    planned = Planned(None, ProfilePlan(10, 20))
    assert [planned.at(steps) for steps in (1, 19, 20, 21, 500)] == [0, 0, 1, 1, 1]
    planned.processes = [one._replace(attempt=3) for one in planned.processes]
    assert planned.at(20) == 2


def test_a_plan_of_the_run_goes_before_that_of_the_configuration_and_none_means_none() -> None:
    assert Planned(ProfilePlan(10, 90), ProfilePlan(10)).at(50) == 0
    assert Planned(None).at(50) == 0


def test_a_plan_is_a_mapping_of_its_fields() -> None:
    assert plan(None) is None
    assert plan(
        {"epochs": [1, 5], "steps": 50, "warmup": 5, "shapes": True, "stacks": False, "memory": True}
    ) == ProfilePlan(50, 5, (1, 5), shapes=True, memory=True)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"step": 5}, "'step' is none of its fields, which are steps, warmup, epochs"),
        ({"steps": 0}, "Expected `int` >= 1 - at `$.steps`"),
        ({"epochs": ["last"]}, "Expected `int`"),
        (True, "bool has no fields"),
    ],
)
def test_what_is_no_plan_costs_the_plan_and_one_line(wrong: Any, reason: str, caplog: pytest.LogCaptureFixture) -> None:
    assert plan(wrong) is None
    assert plan(OmegaConf.create(wrong) if isinstance(wrong, dict) else wrong) is None
    (first, _) = (one.message for one in caplog.records)
    assert first.startswith("trackside: profile: ")
    assert reason in first
    assert first.endswith("; the run goes on without this plan")


def test_a_plan_from_a_configuration_of_hydra_is_the_plan() -> None:
    cfg = OmegaConf.create({"epoch": 1, "profile": {"epochs": ["${epoch}", 5], "steps": 50, "stacks": True}})
    assert plan(cfg.profile) == ProfilePlan(50, 0, (1, 5), stacks=True)
    assert plan({"epochs": cfg.profile.epochs}) == ProfilePlan(epochs=(1, 5))


def test_a_plan_with_unreadable_values_costs_the_plan_and_not_the_run(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cfg = OmegaConf.create({"steps": "${nothing.of.this.name}"})
    with trackside.init("x", enabled=False, profile=cfg) as run:
        run.push(loss=1.0)
    assert sum("profile: " in one.message for one in caplog.records) == 1


@pytest.mark.parametrize(
    ("plan", "seen", "missed"),
    [
        (ProfilePlan(10, 0, (0, 1, 9)), ((500, 0.5), (600, 2.1)), "epochs 1 and 9"),
        (ProfilePlan(10, 0, tuple(range(20))), ((500, 0.5), (600, 2.1)), "epochs 1 and 3 to 19"),
        (ProfilePlan(10, 50), ((20, None),), "step 50"),
        (ProfilePlan(10, 5), ((20, None),), ""),
    ],
)
def test_a_plan_that_a_run_did_not_reach_is_named_once_when_it_has_ended(
    plan: ProfilePlan, seen: Any, missed: str, caplog: pytest.LogCaptureFixture
) -> None:
    planned = Planned(plan)
    for steps, epoch in seen:
        planned.at(steps, epoch)
    planned.processes = []
    planned.at(700)
    planned.at(700)
    why = ", as its plan has it: the run ended before, or the epoch lasted less than a second"
    named = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert named == ([f"run train has no profile of {missed}{why}"] if missed else [])
