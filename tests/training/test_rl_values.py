"""Quantities of reinforcement learning on the page: of several keys the best one, and totals by phase or by push."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import msgspec

from trackside.totals.session_totals import SessionTotals
from trackside.wire import Device, Totals
from trackside_daemon.training.rank import RlValues, rl_totals

LABELS = ("run", "0")


def page(newest: dict[str, float]) -> dict[str, Any]:
    values = RlValues(LABELS)
    for key in newest:
        values.register(key)
    return {one.metric.name: one.value for one in values.samples(newest)}


def counters(totals: Totals) -> dict[str, Any]:
    return {one.metric.name: one.value for one in rl_totals(totals, LABELS)}


def test_the_best_key_of_a_quantity_counts_in_any_order() -> None:
    pushed = {"critic/score/mean": 1.0, "critic/rewards/mean": 2.0, "train/entropy_loss": -0.5, "mine": 7.0}
    expected = {"trackside_rl_reward": 2.0, "trackside_rl_entropy": 0.5}
    assert page(pushed) == page(dict(reversed(pushed.items()))) == expected


def test_a_value_that_is_not_finite_is_left_out() -> None:
    assert page({"episode_reward_mean": nan, "kl": inf}) == {}


def test_pushed_amounts_are_summed_in_the_client() -> None:
    totals = SessionTotals()
    for _ in range(3):
        totals.accept(1, None, {"timing_s/gen": 2.0, "timing_s/update_actor": 1.0, "timing_s/update_critic": 0.5})
    sent = msgspec.msgpack.decode(msgspec.msgpack.encode(totals.totals), type=Totals)
    assert counters(sent) == {
        "trackside_rl_generation_seconds_total": 6.0,
        "trackside_rl_training_seconds_total": 4.5,
    }


def test_phases_of_a_rank_that_generates_come_before_its_pushes() -> None:
    phases = {"generate": 5.0, "reward": 1.0, "forward": 1.0, "backward": 2.0, "optimizer": 0.5, "data": 9.0}
    totals = Totals(phases=phases, device=Device(amounts={"generation_seconds": 1.0, "trained_tokens": 8.0}))
    assert counters(totals) == {
        "trackside_rl_generation_seconds_total": 5.0,
        "trackside_rl_training_seconds_total": 3.5,
        "trackside_rl_trained_tokens_total": 8.0,
    }


def test_a_supervised_training_has_none_of_them() -> None:
    assert counters(Totals(phases={"forward": 1.0, "backward": 2.0})) == {}
