"""Every family and every page follows the rules: base units, one type, true labels, and no invalid number."""

from __future__ import annotations

import math
import re
import sys
from typing import TYPE_CHECKING, cast

import pytest
from documents import documented
from metrics_page import Page, promtool
from processes import ROOT

from trackside_daemon.collectors.gpu.gpu import GpuCollector
from trackside_daemon.model.families import derived
from trackside_daemon.model.families.catalogue import metrics as metrics_in
from trackside_daemon.model.families.gpu import FAMILIES
from trackside_daemon.model.metric import Batch, Metric
from trackside_daemon.model.state import State
from trackside_daemon.nvml.simulation.boards import BOARDS
from trackside_daemon.nvml.simulation.faults import FAULTS
from trackside_daemon.nvml.simulation.simulate import simulate
from trackside_daemon.web.exposition import render

if TYPE_CHECKING:
    from trackside_daemon.nvml.handle.handle import Nvml
    from trackside_daemon.nvml.reading import Reading

GOLDEN = ROOT / "tests" / "golden"
SIMULATED = [*BOARDS, *FAULTS]

RESERVED = re.compile(
    "job|instance|node|pod|namespace|container|service|type|cluster|region|zone|env|environment|datacenter|dc|owner|"
    "customer|quantile|alertname|hostname|exported_.*|__.*"
)
"""Labels that are the scraper's, or mean something to Prometheus."""

NOT_BASE_UNITS = re.compile(
    "percent|percentage|pct|kib|mib|gib|kb|mb|gb|bits|hz|khz|mhz|ghz|megahertz|ms|us|milliseconds|minutes|hours|mw|"
    "milliwatts|kilowatts|mj|millijoules|fahrenheit|kelvin|rpm"
)
UNITS = ("ratio", "seconds", "bytes", "celsius", "watts", "joules", "hertz", "lanes", "cycles")
SENTINELS = {
    *(2.0**32 - 1, 2.0**32 - 2, 2.0**31 - 1, 2.0**31 - 2, (2.0**32 - 1) / 1000, (2.0**32 - 1) * 1e6),
    *(2.0**64, 2.0**63, 2.0**64 / 1000, 2.0**63 / 1000, 2.0**64 / 1e9, 2.0**64 * 1024),
}
"""What drivers answer for what they do not know, as it is and after a conversion."""

BEYOND_ONE = {
    "trackside_gpu_fan_speed_ratio",
    "trackside_layer_update_ratio",
    "trackside_training_checkpoint_room_ratio",
    "trackside_training_straggler_ratio",
}
"""A fan may be asked for more than its nominal speed; a rank may take longer than the median one; a step may change small
weights by more than their norm."""

PUSHED = "trackside_training_"
"""Values of these come from the training and are kept as they were pushed."""


Metrics = dict[str, Metric]
Pages = dict[str, Page]


@pytest.fixture(scope="module")
def metrics() -> Metrics:
    """All families of the documentation, by name."""
    return {metric.name: metric for metric in documented()}


class Driver:
    """A board, or a trouble of the first one, at a moment at which a GPU with that trouble is lost."""

    skipped = 0

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def read(self, _patience: float) -> Reading:
        board = self._kind in BOARDS
        return simulate(2, 620.0, self._kind) if board else simulate(2, 500.0, faults=[self._kind])


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    """The golden pages and those of simulated GPUs, by name."""
    found = {str(path.relative_to(GOLDEN)): path.read_text() for path in GOLDEN.rglob("*.txt")}
    for kind in SIMULATED:
        state = State()
        state.update(Batch("gpu", GpuCollector(cast("Nvml", Driver(kind)), timeout=1.0).collect()))
        found[f"simulated {kind}"] = render(state.snapshot(0.0), openmetrics=False).decode()
    return found


@pytest.fixture(scope="module")
def pages(texts: dict[str, str]) -> Pages:
    """The pages, parsed."""
    return {name: Page(text) for name, text in texts.items()}


def test_there_are_golden_pages(pages: Pages) -> None:
    assert {"metrics.txt", "metrics.openmetrics.txt"} <= set(pages)


def test_every_family_in_the_code_is_documented(metrics: Metrics) -> None:
    modules = [module for name, module in sys.modules.items() if name.partition(".")[0] == "trackside_daemon"]
    known = {metric.name for module in modules for metric in metrics_in(vars(module))}
    assert known - {derived.CPU_CORE_BUSY.name} <= set(metrics)
    assert set(metrics) == set(re.findall(r"^- `(\w+)", (ROOT / "docs" / "metrics.md").read_text(), re.MULTILINE))


def test_no_name_is_used_twice(metrics: Metrics) -> None:
    assert len(documented()) == len(metrics)
    assert len({metric.family for metric in metrics.values()}) == len(metrics)


def test_a_name_is_in_base_units_and_ends_as_its_kind_asks(metrics: Metrics) -> None:
    for metric in metrics.values():
        words = metric.name.split("_")
        assert re.fullmatch(r"trackside(_[a-z0-9]+)+", metric.name)
        assert not any(map(NOT_BASE_UNITS.fullmatch, words))
        assert metric.name.endswith("_total") == (metric.kind == "counter")
        assert not metric.name.endswith(("_count", "_sum", "_bucket", "_created"))


def test_a_name_has_one_unit_and_that_last(metrics: Metrics) -> None:
    for metric in metrics.values():
        units = [word for word in metric.name.split("_") if word in UNITS]
        assert len(units) <= 1
        assert not units or metric.unit.startswith(units[0])


def test_a_help_is_a_sentence(metrics: Metrics) -> None:
    for metric in metrics.values():
        assert metric.help.endswith(".")
        assert len(metric.help.split()) > 2
        assert "\n" not in metric.help


def test_no_label_is_the_scrapers(metrics: Metrics) -> None:
    for metric in metrics.values():
        assert not [label for label in metric.labels if RESERVED.fullmatch(label) or label == "le"]
        assert len(set(metric.labels)) == len(metric.labels)


def test_a_gpus_series_begin_with_its_index_and_its_uuid(metrics: Metrics) -> None:
    for metric in metrics.values():
        assert (metric.labels[:2] == ("gpu", "uuid")) == metric.name.startswith("trackside_gpu_")


def test_promtool_finds_nothing(texts: dict[str, str]) -> None:
    found = {name: promtool(text) for name, text in texts.items() if not text.endswith("# EOF\n")}
    assert set(found.values()) == {""}, found


def test_every_family_has_one_help_and_one_type_and_then_its_series(pages: Pages) -> None:
    for page in pages.values():
        families = [name for kind, name, _ in page.heads if kind == "TYPE"]
        assert len(set(families)) == len(families)
        assert [name for kind, name, _ in page.heads if kind == "HELP"] == families
        for series in page.series:
            assert series.name.startswith(series.family)
        runs = [
            series.family
            for before, series in zip([None, *page.series], page.series, strict=False)
            if before is None or before.family != series.family
        ]
        assert runs == families


def test_every_family_on_a_page_is_documented_and_of_its_kind(pages: Pages, metrics: Metrics) -> None:
    by_family = {metric.family: metric for metric in metrics.values()} | metrics
    for page in pages.values():
        for name, kind in page.kinds.items():
            documented = by_family[name].kind
            assert kind == documented or (kind, documented) == ("gauge", "info"), name


def test_every_series_has_its_familys_labels_and_comes_once(pages: Pages, metrics: Metrics) -> None:
    by_family = {metric.family: metric for metric in metrics.values()} | metrics
    for page in pages.values():
        seen = set()
        for series in page.series:
            more = {"le"} if series.name.endswith("_bucket") else set()
            assert set(series.labels) == {*by_family[series.family].labels, *more}, series
            key = (series.name, *sorted(series.labels.items()))
            assert key not in seen
            seen.add(key)


def test_no_number_stands_for_not_knowing(pages: Pages) -> None:
    for page in pages.values():
        for series in page.series:
            if not series.family.startswith(PUSHED):
                assert not math.isnan(series.value), series
                assert series.value not in SENTINELS, series
                assert abs(series.value) < 9e18, series


def test_a_ratio_is_from_0_to_1(pages: Pages) -> None:
    for page in pages.values():
        for series in page.series:
            if series.family.endswith("_ratio") and series.family not in BEYOND_ONE:
                assert 0 <= series.value <= 1, series


def test_a_gpus_values_are_within_their_bounds(pages: Pages) -> None:
    for page in pages.values():
        for series in page.series:
            family = FAMILIES.get(series.name.removeprefix("trackside_gpu_"))
            if family is not None:
                assert family.low <= series.value <= family.high, series
