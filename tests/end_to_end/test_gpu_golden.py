"""Pages of seven boards, from the fake driver and the real worker, compared word for word.

`pytest --update-golden` rewrites the files; review the diff.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

import pytest
from metrics_page import Page, promtool
from nvml.fake.library import BOARDS, Scenario
from processes import DEADLINE, ROOT, eventually

from trackside_daemon.collectors.gpu.gpu import GpuCollector
from trackside_daemon.model.metric import Batch
from trackside_daemon.model.state import State
from trackside_daemon.nvml.handle.handle import Nvml
from trackside_daemon.web.exposition import render

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trackside_daemon.model.metric import Sample

GOLDEN = ROOT / "tests" / "golden" / "gpu"
NAMES = sorted(path.stem for path in BOARDS.glob("*.txt"))
LONG = DEADLINE

MOST_SERIES = 150
"""Of one GPU, the MIG devices included."""

HAS_GPM = {"b200", "h100-busy", "h100-idle", "h100-mig"}


@pytest.fixture
def collector(scenario: Scenario) -> Iterator[GpuCollector]:
    nvml = Nvml()
    yield GpuCollector(nvml, timeout=LONG)
    nvml.close()


def page(collector: GpuCollector, scenario: Scenario, board: str) -> str:
    """Return the page of one such board in the second cycle, or as soon as GPM has two samples apart in time."""
    fake = Scenario(scenario.path, board)
    cycles = count()

    def collect() -> list[Sample] | None:
        cycle = next(cycles)
        samples = collector.collect()
        # The second cycle and those after it find new samples; GPM may need more of them.
        fake.advance("nvmlDeviceGetSamples:1", min(cycle + 1, 1))
        fake.advance("nvmlDeviceGetProcessUtilization", cycle + 1)
        return samples if cycle and (board not in HAS_GPM or has_gpm(samples)) else None

    samples = eventually(collect)
    assert samples is not None
    state = State()
    state.update(Batch("gpu", samples))
    return render(state.snapshot(0.0), openmetrics=False).decode()


def has_gpm(samples: list[Sample]) -> bool:
    return any(sample.metric.name.endswith("sm_active_ratio") for sample in samples)


@pytest.mark.parametrize("board", NAMES)
def test_the_page_of_a_board_is_the_golden_file(
    board: str, collector: GpuCollector, scenario: Scenario, *, update_golden: bool
) -> None:
    text = page(collector, scenario, board)
    golden = GOLDEN / f"{board}.txt"
    if update_golden:
        golden.write_text(text)
    assert text.splitlines() == golden.read_text().splitlines()


def test_there_is_a_golden_file_for_each_board() -> None:
    assert sorted(path.stem for path in GOLDEN.glob("*.txt")) == NAMES
    assert len(NAMES) == 7


@pytest.mark.parametrize("board", NAMES)
def test_promtool_finds_nothing_in_a_golden_file_and_it_is_no_flood(board: str) -> None:
    text = (GOLDEN / f"{board}.txt").read_text()
    assert promtool(text) == ""
    assert len(Page(text).series) <= MOST_SERIES


def test_what_a_board_cannot_measure_is_absent() -> None:
    families = {board: set(Page((GOLDEN / f"{board}.txt").read_text()).kinds) for board in NAMES}
    everything = set.union(*families.values())
    assert "trackside_gpu_memory_bytes" in everything - families["gb10"]
    assert {"trackside_gpu_ecc_errors_total", "trackside_gpu_nvlink_links"} <= everything - families["rtx4090"]
    assert "trackside_gpu_sm_active_ratio" in everything - families["a100"] - families["h100-mig"]
    assert {"trackside_gpu_utilization_ratio", "trackside_gpu_remapped_rows_total"} <= everything - families["h100-mig"]
    assert {board for board in NAMES if "trackside_gpu_fan_speed_ratio" in families[board]} == {"rtx4090"}
    assert {board for board in NAMES if "trackside_gpu_mig_info" in families[board]} == {"h100-mig"}
