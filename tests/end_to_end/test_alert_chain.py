"""The main chain: a training pushes, the daemon serves, and Prometheus stores.

One daemon and one Prometheus serve the whole file, so each test uses a different run name.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
from end_to_end.prometheus import Prometheus
from end_to_end.queries import SCRAPED
from processes import Daemon, eventually, lasting_daemon

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


EXAMPLE = "examples/pytorch_loop.py"
BATCH = 512
"""Predictions in a step of the example."""

LOOP = """
import sys, trackside
steps = int(sys.argv[1])
for step in range(1, steps + 1):
    trackside.push(step=step, loss=1 / step)
trackside.finish()
print(repr(1 / step))
"""
"""Makes steps as fast as Python can, and prints the very last value."""
TIGHT = ("-c", LOOP, "5000")
DIVERGES = """
import trackside
for step in range(1, 101):
    trackside.push(step=step, loss=1.0 if step <= 60 else float("nan"), learning_rate=1e30)
"""


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    """One daemon for all tests."""
    with lasting_daemon("--collector.gpu.simulate=2") as running:
        yield running


@pytest.fixture(scope="module")
def prometheus(daemon: Daemon, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """One Prometheus for all tests; none of its scrapes may fail."""
    with Prometheus(tmp_path_factory.mktemp("prometheus"), daemon.url) as running:
        running.shows("up", 1)
        yield running


def test_the_loss_pushed_last_and_every_step_are_in_prometheus(
    daemon: Daemon, prometheus: Prometheus, run_training: Callable[..., str]
) -> None:
    printed = run_training(daemon, EXAMPLE, "--steps", "100").split()
    run = '{run="pytorch_loop"}'
    [steps] = prometheus.shows(f"trackside_training_steps_total{run}", 100)
    assert steps.labels == {"run": "pytorch_loop", "rank": "0"}
    loss = prometheus.value(f"trackside_training_loss{run}")
    assert printed == ["step", "100", "loss", f"{loss:.3f}"]
    assert loss == daemon.series()['trackside_training_loss{rank="0",run="pytorch_loop"}']

    assert prometheus.value(f"trackside_training_step{run}") == 100
    assert prometheus.value(f"trackside_training_tokens_total{run}") == 100 * BATCH
    assert prometheus.value(f"trackside_training_learning_rate{run}") == 3e-3
    assert prometheus.value(f"trackside_training_grad_norm{run}") > 0
    assert prometheus.value(f"trackside_training_step_duration_seconds_count{run}") == 99
    assert prometheus.value(f"trackside_training_client_dropped_total{run}") == 0
    assert prometheus.value(f"sum(trackside_training_nonfinite_total{run})") == 0
    prometheus.shows('trackside_training_state{run="pytorch_loop",state="finished"}', 1)


def test_the_very_last_value_of_a_tight_loop_arrives_and_type_help_and_unit(
    daemon: Daemon, prometheus: Prometheus, run_training: Callable[..., str]
) -> None:
    last = float(run_training(daemon, *TIGHT, TRACKSIDE_RUN_NAME="tight"))
    prometheus.shows('trackside_training_steps_total{run="tight"}', 5000)
    assert prometheus.value('trackside_training_loss{run="tight"}') == last
    # OpenMetrics, which Prometheus asks for, has types, helps and units.
    known = {name: one for name, [one] in prometheus.get("metadata").items()}
    assert known["trackside_training_loss"] == {"type": "gauge", "help": "Training loss, as pushed.", "unit": ""}
    assert known["trackside_training_steps"]["type"] == "counter"
    assert known["trackside_training_run"]["type"] == "info"
    assert known["trackside_training_step_duration_seconds"]["type"] == "histogram"
    assert known["trackside_training_step_duration_seconds"]["unit"] == "seconds"


def test_a_loss_of_nan_is_nan_in_prometheus_and_is_counted(
    daemon: Daemon, prometheus: Prometheus, run_training: Callable[..., str]
) -> None:
    run_training(daemon, "-c", DIVERGES, TRACKSIDE_RUN_NAME="far")
    prometheus.shows('trackside_training_steps_total{run="far"}', 100)
    [point] = prometheus.query("trackside_training_loss != trackside_training_loss")
    assert point.labels == {"run": "far", "rank": "0"}
    assert math.isnan(point.value)
    assert prometheus.value('trackside_training_nonfinite_total{run="far",key="loss"}') == 40
    assert prometheus.value('trackside_training_nonfinite_total{run="far",key="learning_rate"}') == 0


def test_a_second_run_of_the_same_name_takes_the_place_of_the_first(
    daemon: Daemon, prometheus: Prometheus, run_training: Callable[..., str]
) -> None:
    run_training(daemon, "-c", LOOP, "60", TRACKSIDE_RUN_NAME="again")
    prometheus.shows('trackside_training_steps_total{run="again"}', 60)
    [first] = prometheus.query('trackside_training_run_info{run="again"}')
    run_training(daemon, "-c", LOOP, "25", TRACKSIDE_RUN_NAME="again")
    prometheus.shows('trackside_training_steps_total{run="again"}', 25)
    assert prometheus.value('resets(trackside_training_steps_total{run="again"}[10m])') == 1
    [second] = prometheus.query('trackside_training_run_info{run="again"}')
    assert second.labels["run_id"] != first.labels["run_id"]
    assert prometheus.query('{__name__=~"trackside.*",run=~"again.+"}') == []


def test_prometheus_counts_every_series_of_the_page(daemon: Daemon, prometheus: Prometheus) -> None:
    def counted() -> bool:
        page = daemon.get("/metrics", accept="application/openmetrics-text").text
        return prometheus.value("scrape_samples_scraped") == len(daemon.series(page)) > 50

    eventually(counted, pause=SCRAPED)
    assert prometheus.value("trackside_gpus_visible") == 2
