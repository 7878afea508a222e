"""Properties of all detectors of a loss: no finding depends on later samples, or on how samples are pushed."""

from __future__ import annotations

from itertools import groupby
from math import inf, nan
from typing import TYPE_CHECKING

import pytest
from detectors.losses import column, falling, found, one_by_one
from hypothesis import given
from hypothesis import strategies as st

from trackside_daemon.detectors.base import Column
from trackside_daemon.detectors.loss_diverging import LossDiverging
from trackside_daemon.detectors.loss_plateau import LossPlateau
from trackside_daemon.detectors.loss_restart import LossRestart
from trackside_daemon.detectors.loss_spike import LossSpike
from trackside_daemon.detectors.nonfinite import NonFinite
from trackside_daemon.detectors.rank_detectors import RankDetectors

if TYPE_CHECKING:
    from collections.abc import Callable

    from trackside_daemon.detectors.base import Detector

ALL = (LossSpike, LossDiverging, LossPlateau, LossRestart, NonFinite)

_levels = st.sampled_from([1.0, 1.0, 1.0, 1.02, 0.98, 1.4, 5.0, 0.1, -1.0, 1e308, -1e308, nan, inf])
_parts = st.lists(st.tuples(st.integers(1, 40), _levels, st.booleans()), min_size=1, max_size=12)


def _samples(parts: list[tuple[int, float, bool]]) -> Column:
    values: list[float] = []
    steps: list[int] = []
    for count, level, back in parts:
        start = (steps[-1] - 20 if back else steps[-1] + 1) if steps else 0
        steps += range(start, start + count)
        values += [level * noise for noise in falling(count, start=2, end=1.9, seed=len(values))]
    return column(values, steps)


@pytest.mark.parametrize("make", ALL)
@given(parts=_parts)
def test_one_by_one_is_as_all_at_once(make: Callable[[], Detector], parts: list[tuple[int, float, bool]]) -> None:
    samples = _samples(parts)
    assert one_by_one(make, samples) == found(make(), samples)


@pytest.mark.parametrize("make", ALL)
@given(parts=_parts, part=st.floats(0, 1))
def test_what_comes_later_changes_nothing(
    make: Callable[[], Detector], parts: list[tuple[int, float, bool]], part: float
) -> None:
    samples = _samples(parts)
    cut = int(part * len(samples.values))
    early = Column(samples.steps[:cut], samples.times[:cut], samples.values[:cut])
    assert found(make(), early) == [finding for finding in found(make(), samples) if finding.at < cut]


@pytest.mark.parametrize("make", ALL)
@given(parts=_parts)
def test_each_finding_is_over_only_after_it_was_found(
    make: Callable[[], Detector], parts: list[tuple[int, float, bool]]
) -> None:
    firing: set[str] = set()
    for finding in found(make(), _samples(parts)):
        assert finding.alert in make().alerts
        if finding.over:
            firing.remove(finding.alert)
        else:
            firing.add(finding.alert)


def test_a_rank_pushed_in_rows_finds_what_it_does_in_one_push() -> None:
    loss, norm = falling(500), falling(500, start=2, end=1, seed=3)
    rate = [1e-3] * 295 + [1.5e-3] * 205
    loss[300:304], norm[303], loss[400] = [1.4 * value for value in loss[300:304]], 9.0, loss[400] * 1.4
    keys = {"train/loss": loss, "grad_norm": norm, "lr": rate}
    rows, whole = RankDetectors(), RankDetectors()
    by_row = [
        (found.key, found.finding._replace(at=i))
        for i in range(500)
        for found in rows.evaluate({key: Column([i], [float(i)], [values[i]]) for key, values in keys.items()})
    ]
    at_once = [(found.key, found.finding) for found in whole.evaluate({k: column(v) for k, v in keys.items()})]
    of_loss = [finding for key, finding in at_once if key == "train/loss"]
    assert of_loss == [finding for key, finding in by_row if key == "train/loss"]
    assert [(finding.alert, finding.at) for finding in of_loss if not finding.over] == [
        ("LossHardBatch", 300),
        ("LossSpike", 303),
        ("LossHardBatch", 400),
    ]
    assert "the gradient norm agrees" in of_loss[2].text
    assert "raised at step 295" in of_loss[2].text


def test_the_memory_of_a_long_run_is_bounded() -> None:
    rank = RankDetectors()
    for i in range(2000):
        list(
            rank.evaluate(
                {"grad_norm": Column([i], [0.0], [1.0]), "lr": Column([i], [0.0], [1.2**i if i < 900 else 1.0])}
            )
        )
    assert len(rank.context.gradients) <= 65
    assert len(rank.context.rates) <= 65
    assert len(rank.context.rates_raised) <= 65


def _severities(*keys: str) -> dict[str, set[str]]:
    values = [*falling(600), *[6.0] * 200]
    found = RankDetectors().evaluate({key: column(values) for key in keys})
    return {
        key: {one.finding.severity for one in group}
        for key, group in groupby(sorted(found, key=lambda one: one.key), key=lambda one: one.key)
    }


def test_only_the_sum_of_losses_is_more_than_information() -> None:
    found = _severities("loss", "loss/recon", "loss_ic", "aux_loss")
    assert "critical" in found.pop("loss")
    assert found == {"loss/recon": {"info"}, "loss_ic": {"info"}, "aux_loss": {"info"}}
    assert "critical" in _severities("loss_a", "loss_b")["loss_b"]


@pytest.mark.parametrize("opponent", ["d_loss", "policy_loss"])
def test_a_loss_beside_those_of_opponents_is_information(opponent: str) -> None:
    assert _severities("loss", opponent) == {"loss": {"info"}}


def test_a_part_that_is_no_number_is_critical() -> None:
    columns = {"loss": column([1.0] * 5), "loss/recon": column([1.0, 1.0, nan, 1.0, 1.0])}
    assert [(one.key, one.finding.severity) for one in RankDetectors().evaluate(columns)] == [
        ("loss/recon", "critical")
    ]
