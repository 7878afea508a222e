"""Unsupported calls, how long they count, and when they are retried."""

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
def test_an_unsupported_call_is_retried_after_ten_minutes(unsupported: Unsupported, clock: Clock, result: str) -> None:
    unsupported.add("ecc", result)
    clock.now += 9.9 * MINUTES
    assert "ecc" in unsupported
    clock.now += 0.2 * MINUTES
    assert "ecc" not in unsupported


@pytest.mark.parametrize("result", ["unknown", "timeout", "reset_required", "not_found"])
def test_a_temporary_error_is_not_recorded(unsupported: Unsupported, result: str) -> None:
    unsupported.add("ecc", result)
    assert "ecc" not in unsupported
    assert unsupported.reasons() == {}


def test_an_expired_reason_is_not_reported_even_if_it_was_never_checked(unsupported: Unsupported, clock: Clock) -> None:
    unsupported.add("ecc", "not_supported")
    clock.now += 5 * MINUTES
    unsupported.add("sram", "not_supported")
    clock.now += 6 * MINUTES
    assert unsupported.reasons() == {"sram": WHY["not_supported"]}


def test_a_removed_name_is_supported_and_not_reported(unsupported: Unsupported) -> None:
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
