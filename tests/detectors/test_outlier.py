"""Jumps of a series, as the detectors of the loss and of layers look for them."""

from __future__ import annotations

import random

import pytest

from trackside_daemon.detectors.loss_spike import Jumps


@pytest.mark.parametrize(("height", "found"), [(12.0, False), (20.0, True)])
def test_a_series_around_nought_jumps_by_more_deviations_than_another(height: float, *, found: bool) -> None:
    jumps, noise = Jumps(scales=6.0, ratio=0.3), random.Random(1)
    for _ in range(300):
        assert jumps.add(noise.gauss(0, 1)) is None
    assert (jumps.add(height) is not None) is found
