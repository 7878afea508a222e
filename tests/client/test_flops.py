"""FLOPs per step or per token, as a training states them, and the totals that are counted from them."""

from __future__ import annotations

import logging

import pytest
from client.messages import CLOCK

from trackside.totals.flops import Flops, flops
from trackside.totals.session_totals import SessionTotals


def counted(reported: Flops, **values: float) -> float | None:
    tally = SessionTotals(flops=reported)
    for step in (10, 11, 13):
        tally.accept(step, step, {"loss": 1.0, **values})
    tally.update(CLOCK)
    return None if tally.totals.device is None else tally.totals.device.flops


def test_steps_or_tokens_are_weighed() -> None:
    assert counted(flops(per_step=1e12), tokens=5.0) == 4e12  # 10, 11, and 13 is two more
    assert counted(flops(per_token=100), tokens=5.0) == 1500
    assert counted(flops(parameters=7), tokens=5.0) == 6 * 7 * 15
    assert counted(flops(per_token=100)) is None  # no tokens were pushed
    assert counted(flops()) is None


def test_the_peak_travels_beside_them() -> None:
    tally = SessionTotals(flops=flops(peak=989e12))
    tally.update(CLOCK)
    assert tally.totals.device is not None
    assert (tally.totals.device.flops, tally.totals.device.peak_flops) == (None, 989e12)


@pytest.mark.parametrize("wrong", [0, -1.0, float("nan"), float("inf"), "3", True, [], 1e31, 10**400])
def test_what_is_no_positive_number_is_left_out_with_one_warning(
    wrong: object, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "trackside"):
        assert flops(per_step=wrong) == Flops()
    [record] = caplog.records
    assert "flops_per_step" in record.getMessage()
    assert "not a positive finite number" in record.getMessage()


def test_among_several_sources_of_the_flops_the_first_counts(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "trackside"):
        assert counted(flops(2, 3, 4), tokens=1.0) == 8
        assert flops(None, 3, 4).per_token == 3
    assert [record.getMessage().rpartition(";")[2] for record in caplog.records] == [
        " flops_per_step is used",
        " flops_per_token is used",
    ]
