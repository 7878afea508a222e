"""A value that is NaN or infinite."""

from __future__ import annotations

from math import inf, nan

import pytest
from detectors.losses import alarms, column, ends, found

from trackside_daemon.detectors.nonfinite import NonFinite, NonFiniteNorm


@pytest.mark.parametrize(("value", "word"), [(nan, "NaN"), (inf, "infinite"), (-inf, "minus infinite")])
def test_it_is_found_at_its_sample(value: float, word: str) -> None:
    (finding,) = found(NonFinite(), column([2.5, 2.25, value, 2.0]))
    assert (finding.at, finding.severity) == (2, "critical")
    assert finding.text == f"{word} at step 2; the last finite value was 2.25"


def test_each_further_one_is_found_anew_and_counted() -> None:
    findings = found(NonFinite(), column([1.0] * 5 + [nan] * 3))
    assert alarms(findings, "NonFinite") == [5, 6, 7]
    assert "3 since step 5" in findings[-1].text


def test_the_step_of_the_last_finite_value_may_have_spoilt_the_weights() -> None:
    """A checkpoint of that step is not to be trusted, whatever its own loss was."""
    findings = found(NonFinite(), column([1.0] * 5 + [nan] * 2 + [1.0] + [nan]))
    assert [one.evidence for one in findings if not one.over] == [{"doubtful_from_step": 4}] * 3
    assert found(NonFinite(), column([nan]))[0].evidence == {"doubtful_from_step": 0}


def test_it_is_over_after_ten_finite_ones_in_a_row() -> None:
    findings = found(NonFinite(), column([nan] + [1.0] * 9 + [nan] + [1.0] * 12))
    assert alarms(findings, "NonFinite") == [0, 10]
    assert ends(findings, "NonFinite") == [20]


def test_a_gradient_norm_may_overflow_now_and_then_with_mixed_precision() -> None:
    one = [1.0] * 30 + [inf] + [1.0] * 30
    assert [finding.severity for finding in found(NonFiniteNorm(), column(one)) if not finding.over] == ["info"]
    many = [1.0] * 30 + [inf, 1.0, inf, 1.0, inf]
    assert found(NonFiniteNorm(), column(many))[-1].severity == "critical"


@pytest.mark.parametrize("count", [3, 5, 17, 40])
def test_norms_that_overflow_until_the_loss_scale_fits_are_information(count: int) -> None:
    findings = found(NonFiniteNorm(), column([inf] * count + [1.0] * 30))
    assert {finding.severity for finding in findings if not finding.over} == {"info"}


def test_norms_that_are_never_finite_are_critical_in_the_end() -> None:
    findings = found(NonFiniteNorm(), column([nan] * 60))
    assert next(finding.at for finding in findings if finding.severity == "critical") == 40
    assert found(NonFinite(), column([nan]))[0].severity == "critical"
