"""What a GPU refuses, for how long, and when it is asked again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from trackside_daemon.nvml.readers.unsupported import WHY, Unsupported

if TYPE_CHECKING:
    from scripted_workers import Clock

MINUTES = 60


@pytest.fixture
def unsupported(clock: Clock) -> Unsupported:
    return Unsupported(clock)


@pytest.mark.parametrize("result", [*WHY, "a reason of ours"])
def test_what_is_refused_is_asked_again_after_ten_minutes(unsupported: Unsupported, clock: Clock, result: str) -> None:
    unsupported.add("ecc", result)
    clock.now += 9.9 * MINUTES
    assert "ecc" in unsupported
    clock.now += 0.2 * MINUTES
    assert "ecc" not in unsupported


@pytest.mark.parametrize("result", ["unknown", "timeout", "reset_required", "not_found"])
def test_what_may_pass_is_no_refusal(unsupported: Unsupported, result: str) -> None:
    unsupported.add("ecc", result)
    assert "ecc" not in unsupported
    assert unsupported.reasons() == {}


def test_what_is_over_is_not_told_although_nobody_asked(unsupported: Unsupported, clock: Clock) -> None:
    unsupported.add("ecc", "not_supported")
    clock.now += 5 * MINUTES
    unsupported.add("sram", "not_supported")
    clock.now += 6 * MINUTES
    assert unsupported.reasons() == {"sram": WHY["not_supported"]}


def test_what_is_lifted_is_neither_refused_nor_told(unsupported: Unsupported) -> None:
    unsupported.add("xid", "not_supported")
    for _ in range(2):
        unsupported.remove("xid")
        assert "xid" not in unsupported
        assert unsupported.reasons() == {}


def test_all_is_forgotten_when_the_gpu_is_another(unsupported: Unsupported) -> None:
    unsupported.add("ecc", "not_supported")
    unsupported.sources["nvlink_transmit_bytes_total"] = "field 138"
    unsupported.summed_links["nvlink_errors_total"] = (0, 1)
    unsupported.clear()
    assert (unsupported.reasons(), unsupported.sources, unsupported.summed_links, unsupported.generation) == (
        {},
        {},
        {},
        1,
    )
