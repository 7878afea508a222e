"""Machines from files, the usual page and the biggest, with the scrape configurations of deploy/prometheus."""

from __future__ import annotations

import re
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from docs_commands.sandbox import TRAINING
from end_to_end.shipped import by_files, shipped, write_targets
from end_to_end.victoria import Victoria
from processes import ROOT, eventually, lasting_daemon

import trackside

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from end_to_end.conftest import Process
    from end_to_end.prometheus import Prometheus
    from processes import Daemon


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    """One daemon for two tests, which is two machines by its two names."""
    with lasting_daemon() as running:
        yield running


def test_a_machine_that_is_written_into_the_file_is_scraped(daemon: Daemon, tmp_path: Path) -> None:
    first = daemon.url.removeprefix("http://")
    second = first.replace("127.0.0.1", "localhost")
    write_targets(tmp_path, first, rack="a")
    with by_files(tmp_path) as prometheus:
        prometheus.shows('up{instance="127.0.0.1",rack="a"}', 1)
        write_targets(tmp_path, first, second, rack="a")
        prometheus.shows('up{instance="localhost",rack="a"}', 1)
        prometheus.shows("count(trackside_build_info)", 2)


def test_victoriametrics_scrapes_the_machines_of_the_file(tmp_path: Path, daemon: Daemon) -> None:
    write_targets(tmp_path, daemon.url.removeprefix("http://"), rack="a")
    [job] = shipped("victoriametrics.yml")["scrape_configs"]
    with Victoria(tmp_path, **job) as victoria:
        victoria.shows('up{instance="127.0.0.1",rack="a"}', 1)
        victoria.shows("count(trackside_build_info)", 1)


KEYS = 1000
"""As many as a rank may have; ten ranks have the 10,000 of all."""


def test_the_biggest_page_of_a_node_with_eight_gpus_is_within_the_limits(
    start_daemon: Callable[..., Daemon],
    start_prometheus: Callable[..., Prometheus],
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    daemon = start_daemon("--collector.gpu.simulate=8")
    monkeypatch.setenv("WORLD_SIZE", "30")
    with ExitStack() as ends:
        for rank in range(30):
            monkeypatch.setenv("RANK", str(rank))
            run = ends.enter_context(trackside.init('"' * 256, id="big", endpoint=daemon.endpoint))
            for phase in ("forward", "backward", "all_reduce", "optimizer"):
                with run.phase(phase):
                    pass
            keys = (f"{number:04}".ljust(256, '"') for number in range(KEYS))
            run.push(
                {"loss": 1.0, "lr": 1.0, "grad_norm": 1.0, "tokens": 1, "samples": 1, **dict.fromkeys(keys, 1.0)},
                step=1,
            )
        page = eventually(lambda: full(daemon), pause=1)  # it takes the daemon much of a second
        [job] = shipped("prometheus.yml")["scrape_configs"]
        assert 10 * KEYS < len(daemon.series(page)) < job["sample_limit"]
        if request.config.getoption("--soak"):
            prometheus = start_prometheus(daemon.url, **{key: job[key] for key in job if key.endswith("_limit")})
            prometheus.shows("up", 1)
            assert prometheus.value("scrape_samples_scraped") > 10 * KEYS
    assert job["body_size_limit"] == "16MB"
    assert len(page.encode()) < 2**24  # which Prometheus means by that, and VictoriaMetrics takes


def full(daemon: Daemon) -> str:
    """Return the page once it is full."""
    page = daemon.get("/metrics").text
    return page if page.count("\ntrackside_training_value{") == 10 * KEYS else ""


@pytest.mark.usefixtures("only_soak")
def test_a_node_has_about_as_many_series_as_the_page_states(
    start_daemon: Callable[..., Daemon],
    start_training: Callable[..., Process],
    start_prometheus: Callable[..., Prometheus],
) -> None:
    page = (ROOT / "docs" / "prometheus.md").read_text(encoding="utf-8")
    reported = int(re.findall(r"has about ([\d,]+) series", page)[0].replace(",", ""))
    daemon = start_daemon("--collector.gpu.simulate=8")
    about = {"TRACKSIDE_RUN_NAME": "net", "TRACKSIDE_RUN_ID": "net-1", "WORLD_SIZE": "8"}
    for rank in range(8):
        start_training(daemon, "-c", TRAINING, "on", RANK=str(rank), LOCAL_RANK=str(rank), **about)
    prometheus = start_prometheus(daemon.url)
    prometheus.shows('count(trackside_process_info{role="rank"})', 8)
    eventually(lambda: prometheus.value("scrape_samples_scraped") == pytest.approx(reported, rel=0.1))
