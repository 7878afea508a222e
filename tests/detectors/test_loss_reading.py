"""A loss that is read as an objective: why, what it raises then, and where the reading is shown."""

from __future__ import annotations

import logging
import random
from math import nan
from typing import TYPE_CHECKING

import pytest
from detectors.losses import column, falling
from detectors.test_rank_watch import block, findings_of, ingested, opened
from msgspec.structs import replace as replace_fields

from trackside.wire import ProcessInfo
from trackside_daemon.detectors.base import Column
from trackside_daemon.detectors.key_roles import KeyRoles
from trackside_daemon.detectors.rank_detectors import RankDetectors
from trackside_daemon.detectors.rank_watch import RankWatch
from trackside_daemon.detectors.run_detectors import BestLoss

if TYPE_CHECKING:
    from collections.abc import Sequence

DIVERGES = [*falling(600), *[6.0] * 200]


def read(values: Sequence[float], roles: KeyRoles | None = None, **others: float) -> tuple[set[str], str]:
    """Return the severities that a loss raises, and why it is read as an objective."""
    rank = RankDetectors(roles=roles or KeyRoles())
    columns = {"loss": column(values), **{key: column([value] * len(values)) for key, value in others.items()}}
    severities: set[str] = {one.finding.severity for one in rank.evaluate(columns) if one.key == "loss"}
    return severities, rank.readings.get("loss", "")


def test_a_loss_that_diverges_is_a_loss() -> None:
    assert read(DIVERGES) == ({"info", "warning", "critical"}, "")


@pytest.mark.parametrize("key", ["rewards/format/mean", "d_loss"])
def test_a_loss_beside_an_objective_or_a_part_of_a_reward(key: str) -> None:
    assert read(DIVERGES, None, **{key: 1.0}) == ({"info"}, f"{key} is pushed too")


@pytest.mark.parametrize("key", ["reward", "episodic_return"])
def test_a_loss_beside_a_reward_raises_nothing(key: str) -> None:
    assert read(DIVERGES, None, **{key: 1.0}) == (set(), f"{key} is pushed too")


def test_preferences_are_no_reward() -> None:
    assert read(DIVERGES, None, **{"rewards/chosen": 1.0})[1] == ""


def test_a_loss_that_never_fell() -> None:
    draw = random.Random(3)
    values = [0.5 + 0.002 * max(0, i - 500) + draw.gauss(0, 0.02) for i in range(1500)]
    assert read(values) == ({"info"}, "it has risen without having fallen below its start")


def test_a_policy_loss_that_begins_at_nothing_and_rises() -> None:
    """Normalized advantages cancel at first, and then a penalty grows with each update."""
    draw = random.Random(3)
    values = [0.05 * min(1, i / 400) ** 2 * (1 + 0.3 * draw.random()) + 1e-6 * draw.random() for i in range(1200)]
    assert read(values) == ({"info"}, "it has risen without having fallen below its start")


def test_a_policy_loss_that_dips_and_comes_back_slowly() -> None:
    draw = random.Random(3)
    dip = [-1.5 * (1 - 0.96**i) * 0.997 ** max(0, i - 100) for i in range(1500)]
    assert read([0.3 + one + draw.gauss(0, 0.15) for one in dip])[0] <= {"info", "warning"}


def test_of_recurring_rises_only_the_first_is_a_warning() -> None:
    values = falling(600)
    for _ in range(16):
        values += [2 + 3 * 0.97 ** (i // 2) * (i < 100) for i in range(150)]
    found = [one.finding for one in RankDetectors().evaluate({"loss": column(values)})]
    assert [(one.severity, one.at) for one in found if one.severity != "info" and not one.over] == [("warning", 632)]


def test_a_loss_that_falls_below_zero() -> None:
    draw = random.Random(3)
    falls_below_zero = [3 - 5 * i / 2000 + draw.gauss(0, 0.02) for i in range(2000)]
    assert read(falls_below_zero)[1] == ""


def test_a_stated_role_decides() -> None:
    assert read(DIVERGES, KeyRoles([("loss", "loss")]), reward=1.0) == ({"info", "warning", "critical"}, "")
    assert read(DIVERGES, KeyRoles([("loss", "objective")])) == (set(), "")
    assert read([*DIVERGES, nan], KeyRoles([("l*", "objective")])) == ({"critical"}, "")


def test_a_warm_restart_of_the_learning_rate_explains_a_rise() -> None:
    rates = [0.001 + 0.1 * (1 - step % 400 / 400) for step in range(1600)]
    values = [2 + 10 * rate + 20 * 0.99**step for step, rate in enumerate(rates)]
    columns = {"loss": column(values), "lr": column(rates)}
    assert {one.finding.severity for one in RankDetectors().evaluate(columns)} == {"info"}
    values[1200:] = [16.0] * 400
    rates[1200:] = [0.5] * 400  # higher than ever
    assert "critical" in {one.finding.severity for one in RankDetectors().evaluate(columns)}


def test_a_reading_is_the_same_row_by_row() -> None:
    values = [*falling(300), *([2.0] * 60 + [6.0] * 60) * 4, *[6.0] * 200]
    whole, rows = RankDetectors(), RankDetectors()
    at_once = [(one.finding.at, one.finding.severity) for one in whole.evaluate({"loss": column(values)})]
    one_by_one = [
        (step, one.finding.severity)
        for step, value in enumerate(values)
        for one in rows.evaluate({"loss": Column([step], [float(step)], [value])})
    ]
    assert sorted(at_once) == sorted(one_by_one)
    assert whole.readings == rows.readings


def test_the_log_has_it_once_for_all_ranks(caplog: pytest.LogCaptureFixture) -> None:
    watch = RankWatch()
    with caplog.at_level(logging.INFO, "trackside"):
        for rank in range(2):
            session = b"%d" % rank
            findings_of(watch, opened(session, rank=rank, world=2))
            for first in (0, 1):
                findings_of(watch, ingested(block(first, {"loss": [1.0], "reward": [2.0]}), session=session))
    [line] = [one.getMessage() for one in caplog.records]
    assert line.startswith(
        "run name-id: loss is read as an objective, which raises information at most: reward is pushed"
    )
    assert watch.readings("id", 0) == {"loss": "reward is pushed too"}


def test_a_run_states_roles_in_its_hello() -> None:
    watch, record = RankWatch(roles=KeyRoles([("score", "loss")])), opened()
    record.hello.about = replace_fields(ProcessInfo(), roles={"score": "objective", "x": "none"})
    assert findings_of(watch, record, ingested(block(0, {"score": DIVERGES}))) == []
    other = RankWatch(roles=KeyRoles([("score", "loss")]))
    assert {one.severity for one in findings_of(other, opened(), ingested(block(0, {"score": DIVERGES})))} >= {
        "critical"
    }


def test_the_last_words_have_no_best_objective() -> None:
    best = BestLoss(0)
    assert best.text("reward is pushed too") == ""
