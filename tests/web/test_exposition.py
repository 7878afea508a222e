"""The metrics page, compared with prometheus_client's output and parsers."""

from __future__ import annotations

import re
from math import inf, nan
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client import Metric as Family
from prometheus_client.openmetrics import exposition
from prometheus_client.openmetrics import parser as openmetrics_parser
from prometheus_client.parser import text_string_to_metric_families as parse_text
from prometheus_client.utils import floatToGoString

from trackside.wire import DURATION_BUCKETS
from trackside_daemon.model.metric import Batch, Distribution, Metric, Sample
from trackside_daemon.model.state import State
from trackside_daemon.web.exposition import format_number, process_registry, render

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

library_writes: Callable[[float], str] = floatToGoString
generate_openmetrics: Callable[[CollectorRegistry], bytes] = exposition.generate_latest
parse_openmetrics: Callable[[str], Iterable[Family]] = openmetrics_parser.text_string_to_metric_families

PLAIN = Metric("trackside_up", "gauge", "No labels.")
GAUGE = Metric("trackside_power_watts", "gauge", 'Say "watts", a \\ and\na new line.', ("gpu", "a"), "watts")
COUNTER = Metric("trackside_energy_joules_total", "counter", "Energy.", ("gpu",), "joules")
BARE = Metric("trackside_steps_total", "counter", "No unit.", ("gpu",))
INFO = Metric("trackside_build_info", "info", "Versions.", ("version", "a"))
HISTOGRAM = Metric("trackside_step_seconds", "histogram", "Steps.", ("run", "zone"), "seconds", DURATION_BUCKETS)
ODD = Metric("trackside_odd", "histogram", "Buckets at all sizes.", buckets=(0.0, 5e-324, 1e-7, 1e6, 1.5e15, 1e300))
FAMILIES = (PLAIN, GAUGE, COUNTER, BARE, INFO, HISTOGRAM, ODD)

EDGES = [
    *(0.0, -0.0, 1.0, -1.0, 0.1, nan, inf, -inf, 5e-324, -5e-324, 2.2250738585072014e-308, 1.7976931348623157e308),
    *(999999.0, 999999.9999999999, 1e6, 1000000.1, 1e7, 123456789.125, 1e15, 1e16, 12345678901234567.0, 1e17, 1e100),
    *(-999999.5, -1e6, -1234567.5, -1e16, -1e17, 1e-3, 1e-4, 9.999999999999999e-05, 1e-5, 1.5e-7, 10.00001, -1e-5),
    *(2.0**53, 2.0**64, 0.30000000000000004, 100000.0, 1700000000.123),
]

any_float = st.sampled_from(EDGES) | st.floats()
any_count = st.sampled_from([edge for edge in EDGES if edge >= 0]) | st.floats(min_value=0, allow_nan=False)
any_label = (
    st.sampled_from(["", '"', "\\", "\n", "\\n", '\\"', "a,b", "{}", "é", "损失", "\x00", "\r", "\x85", " "])
    | st.text()
)


def as_go_writes_it(value: float) -> str:
    return exponents(library_writes(value))


def exponents(text: str) -> str:
    """Return lines with exponents as Go writes them; prometheus_client before 0.26 writes ``e+010`` for 1e10."""
    return re.sub(r"e\+0(\d\d)$", r"e+\1", text, flags=re.MULTILINE)


def distributions(metric: Metric) -> st.SearchStrategy[Distribution]:
    size = len(metric.buckets) + 1
    counts = st.lists(st.integers(0, 2**53), min_size=size, max_size=size).map(tuple)
    return st.builds(Distribution, counts, any_count)


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    """Generate samples of every family, each series once."""
    samples: list[Sample] = []
    for metric in FAMILIES:
        values: Any = {"counter": any_count, "info": st.just(1.0), "histogram": distributions(metric)}
        labels = st.tuples(*[any_label] * len(metric.labels))
        rows = draw(st.dictionaries(labels, values.get(metric.kind, any_float), max_size=4))
        samples += [Sample(metric, names, value) for names, value in rows.items()]
    return Batch("s", samples)


class Oracle:
    """A batch in prometheus_client's own data model."""

    def __init__(self, batch: Batch) -> None:
        self._samples = batch.samples

    def describe(self) -> list[Family]:
        return []

    def collect(self) -> Iterator[Family]:
        for metric in sorted({sample.metric for sample in self._samples}, key=lambda metric: metric.name):
            family = Family(metric.family, metric.help, metric.kind, metric.unit)
            for sample in self._samples:
                if sample.metric is metric:
                    self._add(family, sample)
            yield family

    def _add(self, family: Family, sample: Sample) -> None:
        labels = dict(zip(sample.metric.labels, sample.labels, strict=True))
        if not isinstance(sample.value, Distribution):
            family.add_sample(sample.metric.name, labels, sample.value)
            return
        for index, bound in enumerate((*sample.metric.buckets, inf)):
            up_to = float(sum(sample.value.counts[: index + 1]))
            family.add_sample(f"{family.name}_bucket", {**labels, "le": as_go_writes_it(bound)}, up_to)
        family.add_sample(f"{family.name}_count", labels, float(sum(sample.value.counts)))
        family.add_sample(f"{family.name}_sum", labels, sample.value.sum)

    def registry(self) -> CollectorRegistry:
        registry = CollectorRegistry()
        registry.register(cast("Any", self))
        return registry


def page(*found: Batch, openmetrics: bool = False) -> str:
    state = State()
    for one in found:
        state.update(one)
    return render(state.snapshot(0.0), openmetrics=openmetrics).decode()


def read(families: Any) -> dict[tuple[str, str], str]:
    """Return every sample of a parsed page with its value as Go writes it, since NaN is unequal to itself."""
    return {
        (one.name, repr(sorted(one.labels.items()))): as_go_writes_it(one.value)
        for family in families
        for one in family.samples
    }


@given(batches())
def test_a_page_is_what_prometheus_client_writes_and_its_parsers_read(batch: Batch) -> None:
    """The OpenMetrics parser is strict: no EOF, wrong units or suffixes, split families and broken histograms are errors."""
    oracle = Oracle(batch)
    text, openmetrics = page(batch), page(batch, openmetrics=True)
    assert text == exponents(generate_latest(oracle.registry()).decode())
    assert openmetrics == exponents(generate_openmetrics(oracle.registry()).decode())
    assert read(parse_openmetrics(openmetrics)) == read(parse_text(text)) == read(oracle.collect())
    others = Batch("t", [sample._replace(value=sample.value) for sample in batch.samples])
    for both in (page(batch, others), page(batch, others, openmetrics=True)):
        _once_and_without_timestamps(both)


def _once_and_without_timestamps(text: str) -> None:
    lines = [line for line in text.split("\n")[:-1] if not line.startswith("#")]
    found = [re.fullmatch(r'([a-z_]+(?:\{(?:[a-z_]+="(?:[^"\\]|\\.)*",?)+\})?) ([^ ]+)', line) for line in lines]
    assert all(found), lines
    names = [one[1] for one in found if one is not None]
    assert len(set(names)) == len(names)
    assert not any("_created" in name.partition("{")[0] for name in names)


@given(any_float)
@example(1e6)
def test_a_number_is_written_as_go_writes_it(value: float) -> None:
    assert format_number(value) == as_go_writes_it(value)


@given(st.lists(any_float, min_size=1))
def test_the_numbers_of_a_family_are_written_alike_whatever_stands_beside_them(values: list[float]) -> None:
    samples = [Sample(GAUGE, (str(index), ""), value) for index, value in enumerate(values)]
    written = [line.rpartition(" ")[2] for line in page(Batch("s", samples)).splitlines()[2:]]
    assert written == [as_go_writes_it(value) for value in values]


def test_an_empty_page_is_empty() -> None:
    assert page() == ""
    assert page(openmetrics=True) == "# EOF\n"


def test_a_page_has_this_form() -> None:
    batch = Batch("s", [Sample(COUNTER, ("0",), 1234567.5), Sample(PLAIN, (), 1.0)])
    assert page(batch, openmetrics=True) == (
        "# HELP trackside_energy_joules Energy.\n"
        "# TYPE trackside_energy_joules counter\n"
        "# UNIT trackside_energy_joules joules\n"
        'trackside_energy_joules_total{gpu="0"} 1.2345675e+06\n'
        "# HELP trackside_up No labels.\n"
        "# TYPE trackside_up gauge\n"
        "trackside_up 1.0\n"
        "# EOF\n"
    )


def test_half_a_character_in_a_label_costs_no_page() -> None:
    samples = [Sample(BARE, ("\udcff",), 1.0), Sample(PLAIN, (), 1.0)]
    assert 'trackside_steps_total{gpu="?"} 1.0' in page(Batch("s", samples))


def test_a_series_that_was_rendered_once_is_rendered_anew_after_it_was_forgotten() -> None:
    state = State()
    for value in (1.0, 2.0):
        state.update(Batch("s", [Sample(BARE, ("0",), value)], complete=True))
        assert f'trackside_steps_total{{gpu="0"}} {value}' in render(state.snapshot(0.0), openmetrics=False).decode()
        state.update(Batch("s", complete=True))


@pytest.mark.parametrize("as_openmetrics", [False, True])
def test_the_daemons_own_families_come_last_and_are_read_by_the_parsers(as_openmetrics: bool) -> None:
    state = State()
    state.update(Batch("s", [Sample(PLAIN, (), 1.0)]))
    text = render(state.snapshot(0.0), openmetrics=as_openmetrics, process_metrics=process_registry()).decode()
    families = list(parse_openmetrics(text) if as_openmetrics else parse_text(text))
    names = [family.name for family in families]
    assert names[0] == "trackside_up"
    assert {"process_resident_memory_bytes", "python_info"} <= set(names)
    assert len(set(names)) == len(names)
    assert text.endswith("# EOF\n") is as_openmetrics
    assert "_created" not in text
