"""Templates format numbers readably, and execute nothing."""

from __future__ import annotations

import pytest

from trackside_daemon.alerts.rules.template import MAX_LABEL_LENGTH, check, fill, prometheus_template


def test_numbers_have_forms() -> None:
    text = "{value} {value:percent} {value:whole} {value:bytes} {value:duration} {threshold}"
    assert fill(text, {"value": 12345.0, "threshold": 0.5}, {}) == "12,345 1,234,500.0 % 12,345 12.1 KiB 3 h 25 min 0.5"


def test_braces_in_a_label_are_text() -> None:
    assert fill("{run}", {"value": 1.0}, {"run": "{value} {0.__class__}"}) == "{value} {0.__class__}"


def test_a_long_label_is_cut() -> None:
    assert fill("{run}", {}, {"run": "a" * 1000}) == "a" * MAX_LABEL_LENGTH


@pytest.mark.parametrize(
    "text",
    ["{value.real}", "{value!r}", "{run[0]}", "{}", "{0}", "{value:>10}", "{run:percent}", "{", "}", "{{value}}"],
)
def test_anything_else_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        check(text, ("run",))


def test_a_template_can_be_written_for_prometheus() -> None:
    text = "GPU {gpu} {value:percent} since {since}"
    assert prometheus_template(text) == "GPU {{ $labels.gpu }} {{ humanizePercentage $value }} since the alert's start"


@pytest.mark.parametrize(
    ("value", "below", "above"),
    [(0.24, "0.2 degrees below", "0.2 degrees above"), (-0.24, "0.2 degrees above", "0.2 degrees below")],
)
def test_degrees_are_on_one_side_of_a_temperature_or_on_the_other(value: float, below: str, above: str) -> None:
    assert fill("{value:below} and {value:above}", {"value": value}, {}) == f"{below} and {above}"
    wanted = '{{ printf "%.1f" $value | reReplaceAll "^-" "" }} degrees {{ if lt $value 0.0 }}above{{ else }}below{{ end }} x'
    assert prometheus_template("{value:below} x") == wanted
