"""What a GPU refuses, for how long, and when it is asked again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from trackside_daemon.nvml.readers.unsupported import WHY, Refusals

if TYPE_CHECKING:
    from scripted_workers import Clock

MINUTES = 60


@pytest.fixture
def refusals(clock: Clock) -> Refusals:
    return Refusals(clock)


@pytest.mark.parametrize("result", [*WHY, "a reason of ours"])
def test_what_is_refused_is_asked_again_after_ten_minutes(refusals: Refusals, clock: Clock, result: str) -> None:
    refusals.add("ecc", result)
    clock.now += 9.9 * MINUTES
    assert "ecc" in refusals
    clock.now += 0.2 * MINUTES
    assert "ecc" not in refusals


@pytest.mark.parametrize("result", ["unknown", "timeout", "reset_required", "not_found"])
def test_what_may_pass_is_no_refusal(refusals: Refusals, result: str) -> None:
    refusals.add("ecc", result)
    assert "ecc" not in refusals
    assert refusals.told() == {}


def test_what_is_over_is_not_told_although_nobody_asked(refusals: Refusals, clock: Clock) -> None:
    refusals.add("ecc", "not_supported")
    clock.now += 5 * MINUTES
    refusals.add("sram", "not_supported")
    clock.now += 6 * MINUTES
    assert refusals.told() == {"sram": WHY["not_supported"]}


def test_what_is_lifted_is_neither_refused_nor_told(refusals: Refusals) -> None:
    refusals.add("xid", "not_supported")
    for _ in range(2):
        refusals.lift("xid")
        assert "xid" not in refusals
        assert refusals.told() == {}


def test_all_is_forgotten_when_the_gpu_is_another(refusals: Refusals) -> None:
    refusals.add("ecc", "not_supported")
    refusals.chosen["nvlink_transmit_bytes_total"] = "field 138"
    refusals.links["nvlink_errors_total"] = (0, 1)
    refusals.clear()
    assert (refusals.told(), refusals.chosen, refusals.links, refusals.cleared) == ({}, {}, {}, 1)
