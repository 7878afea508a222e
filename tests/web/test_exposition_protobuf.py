"""The metrics page as protobuf: what a scraper reads from it is what the text has, and histograms are native, too."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

import pytest
from prometheus_client.parser import text_string_to_metric_families

from trackside.buckets import duration_index
from trackside.totals.session_totals import empty, observe
from trackside.wire import DURATION_BUCKETS, Histogram
from trackside_daemon.http_client.protobuf import double, integer, message, messages, signed, text, varint
from trackside_daemon.model.metric import Batch, Distribution, Metric, Sample
from trackside_daemon.model.state import State
from trackside_daemon.web.exposition import process_registry, render, render_protobuf
from trackside_daemon.web.http.negotiation import negotiate_format

if TYPE_CHECKING:
    from collections.abc import Iterator

STEP = Metric("trackside_x_seconds", "histogram", "Steps.", ("run",), "seconds", DURATION_BUCKETS)
LOSS = Metric("trackside_loss", "gauge", "The loss.", ("run", "rank"))
STEPS = Metric("trackside_steps_total", "counter", "Steps.", ("run",))
OF_PROMETHEUS = (  # 2.42 with the feature flag native-histograms
    "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited,"
    "application/openmetrics-text;version=1.0.0;q=0.8,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
DURATIONS = [0.0, 0.0101, 0.0102, 0.011, 0.25, 0.25, 3.0, 1000.0]


def families(page: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(page):
        size, at = varint(page, at)
        yield page[at : at + size]
        at += size


def values(page: bytes) -> dict[tuple[str, tuple[str, ...]], float]:
    """Return the values of counters and gauges by name and labels."""
    found = {}
    for family in families(page):
        for metric in messages(family, 4):
            labels = tuple(sorted(f"{text(pair, 1)}={text(pair, 2)}" for pair in messages(metric, 1)))
            for field in (2, 3):
                for value in messages(metric, field):
                    found[text(family, 1), labels] = double(value, 1)
    return found


@pytest.fixture
def state() -> State:
    state = State()
    observed = empty(Histogram)
    for duration in DURATIONS:
        observe(observed, duration)
    distribution = Distribution(tuple(observed.counts), observed.sum, observed.fine)
    samples = [
        Sample(STEP, ("a",), distribution),
        Sample(LOSS, ('b"\\\n', "0"), float("inf")),
        Sample(LOSS, ("c", "1"), 0.5),
        Sample(STEPS, ("a",), 7),
    ]
    state.update(Batch("training", samples, complete=True))
    return state


def test_values_are_those_of_the_text(state: State) -> None:
    snapshot = state.snapshot(0.0)
    found = values(render_protobuf(snapshot, process_registry()))
    page = render(snapshot, openmetrics=False, process_metrics=process_registry()).decode()
    expected = {
        (sample.name, tuple(sorted(f"{name}={value}" for name, value in sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if family.type != "histogram"
    }
    assert found.keys() == expected.keys()
    for name in (("trackside_steps_total", ("run=a",)), ("trackside_loss", ("rank=1", "run=c"))):
        assert found[name] == expected[name]


def test_histograms_have_classic_and_native_buckets(state: State) -> None:
    (family,) = [one for one in families(render_protobuf(state.snapshot(0.0))) if text(one, 1) == STEP.name]
    histogram = message(message(family, 4), 7)
    assert (integer(family, 3), integer(histogram, 1)) == (4, len(DURATIONS))
    classic = [integer(bucket, 1) for bucket in messages(histogram, 3)]
    assert classic == [*(sum(one <= bound for one in DURATIONS) for bound in DURATION_BUCKETS), len(DURATIONS)]
    assert (integer(histogram, 5), integer(histogram, 7)) == (2 * 3, 1)  # schema 3 in zigzag, and one zero
    indexes: list[int] = []
    end = 0
    for span in messages(histogram, 12):
        offset = unzigzag(integer(span, 1))
        indexes += range(end + offset, end + offset + integer(span, 2))
        end += offset + integer(span, 2)
    deltas, counts, at = message(histogram, 13), [], 0
    while at < len(deltas):
        number, at = varint(deltas, at)
        counts.append(unzigzag(number))
    expected = [index for index in map(duration_index, DURATIONS) if index is not None]
    assert dict(zip(indexes, accumulate(counts), strict=True)) == {one: expected.count(one) for one in expected}


def unzigzag(number: int) -> int:
    return signed((number >> 1) ^ -(number & 1) & 0xFFFF_FFFF_FFFF_FFFF)


def test_it_is_only_for_scrapers_that_prefer_it() -> None:
    assert negotiate_format(OF_PROMETHEUS).protobuf
    assert not negotiate_format(OF_PROMETHEUS.replace("delimited", "text")).protobuf
    assert not negotiate_format("application/openmetrics-text;version=1.0.0,*/*;q=0.1").protobuf


def test_an_index_is_that_of_the_smallest_bound_that_is_not_below() -> None:
    for exponent in (-39.4, -3.0, -0.125, 0.0, 0.01, 0.125, 11.3):
        index = duration_index(2.0**exponent)
        assert index is not None
        assert 2.0 ** ((index - 1) / 8) * (1 - 1e-12) < 2.0**exponent <= 2.0 ** (index / 8) * (1 + 1e-12)
    assert [duration_index(value) for value in (0.0, -1.0, 2.0**-42, float("inf"), float("nan"))] == [None] * 5
