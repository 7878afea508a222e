"""The road beyond one machine: an agent scrapes daemons, and writes to Prometheus and to VictoriaMetrics."""

from __future__ import annotations

import signal
import struct
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
from end_to_end.queries import SCRAPED
from end_to_end.shipped import agent, central, write_targets
from end_to_end.victoria import Victoria
from processes import DEADLINE, Daemon, eventually, http

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from end_to_end.conftest import Process
    from end_to_end.queries import Queries
    from end_to_end.shipped import Shipped

TRAINING = """
import trackside
with trackside.init() as run:
    run.push(step=1, loss=2.5, tokens=512)
    run.push(step=2, loss=1.25, tokens=512)
    input()
"""
EXTERNAL = {"cluster": "main", "replica": "a"}


class Road(NamedTuple):
    """A daemon whose agent writes to both others."""

    daemon: Daemon
    central: Shipped
    victoria: Victoria

    @property
    def ends(self) -> tuple[Shipped, Victoria]:
        """The two receivers."""
        return self.central, self.victoria


@contextmanager
def laid(directory: Path) -> Iterator[Road]:
    """Yield a road that ends with the block."""
    with tempfile.TemporaryDirectory(prefix="ts-", dir="/tmp") as place:
        daemon = Daemon(Path(place), "--run.linger=0s", "--collector.gpu.simulate=2", "--no-collector.process")
        write_targets(directory / "agent", daemon.url.removeprefix("http://"), rack="a")
        try:
            with (
                central(directory / "central") as receiver,
                Victoria(directory / "victoria") as victoria,
                agent(directory / "agent", receiver.write_url, victoria.write_url),
            ):
                yield Road(daemon, receiver, victoria)
        finally:
            daemon.stop(signal.SIGKILL)


@pytest.fixture(scope="module")
def road(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Road]:
    """One for the tests that leave it whole."""
    with laid(tmp_path_factory.mktemp("road")) as found:
        yield found


def test_values_arrive_with_the_labels_of_daemon_targets_file_and_agent_and_of_an_ended_run_only_how_it_ended(
    road: Road, start_training: Callable[..., Process]
) -> None:
    training = start_training(road.daemon, "-c", TRAINING, TRACKSIDE_RUN_NAME="far")
    for end in road.ends:
        [loss] = end.shows('trackside_training_loss{run="far"}', 1.25)
        assert loss.labels == {"run": "far", "rank": "0", "rack": "a", **EXTERNAL}
        end.shows('trackside_training_tokens_total{run="far"}', 1024)
        end.shows('trackside_training_step_duration_seconds_bucket{run="far",le="+Inf"}', 1)
        end.shows("count(trackside_gpu_up)", 2)
        end.shows('up{instance="127.0.0.1"}', 1)
    finish(training)
    live = 'trackside_training_loss{run="far"}'
    for end in road.ends:
        end.shows(live)
        end.shows('trackside_training_state{run="far",state="finished"}', 1)
        end.shows('trackside_training_end_timestamp_seconds{run="far"} > bool 0', 1)
        assert end.value(f"count_over_time({live}[5m])") > 0  # within the time for which a lost series is shown


def finish(training: Process) -> None:
    training.communicate("\n", timeout=DEADLINE)
    assert training.returncode == 0


@pytest.mark.usefixtures("only_soak")
def test_scrapes_of_while_the_receiver_was_down_arrive_and_a_killed_daemon_leaves_only_that_it_is_down(
    tmp_path: Path,
) -> None:
    with laid(tmp_path) as road:
        for end in road.ends:
            end.shows("count(trackside_gpu_up)", 2)
        road.central.stop()
        cut = len(samples(road.victoria))
        eventually(lambda: len(samples(road.victoria)) >= cut + 5, pause=SCRAPED)
        with central(tmp_path / "central", port=int(road.central.url.rpartition(":")[2])) as back:
            whole = samples(road.victoria)
            eventually(lambda: samples(back)[: len(whole)] == whole, pause=SCRAPED)
            road.daemon.stop(signal.SIGKILL)
            for end in (back, road.victoria):
                end.shows('{__name__=~"trackside_.*"}')
                end.shows("up", 0)
                assert end.value("count(count_over_time(trackside_gpu_up[5m]))") == 2


def samples(end: Queries) -> list[tuple[float, str]]:
    """Return the times and values of `up`."""
    found = end.get("query", query="up[5m]")["result"]
    return [(at, value) for one in found for at, value in one["values"]]


@pytest.mark.usefixtures("only_soak")
def test_old_scrapes_are_accepted_though_others_have_written_today_s(tmp_path: Path) -> None:
    ago = int(time.time()) - 3 * 3600
    with central(tmp_path / "central") as receiver:
        receiver.shows('ALERTS{alertname="TracksideWatchdog"}', 1)  # of now
        answer = http.post(receiver.write_url, content=written("late", 7, ago), headers={"Content-Encoding": "snappy"})
        assert (answer.status_code, answer.text) == (204, "")
        [late] = receiver.get("query", query="late", time=str(ago))["result"]
    assert late["value"] == [ago, "7"]


def written(name: str, value: float, at: int) -> bytes:
    """Return a remote write of one sample: an uncompressed prometheus.WriteRequest in a block of Snappy's format."""

    def field(number: int, content: bytes) -> bytes:
        return bytes((number << 3 | 2, len(content))) + content

    label = field(1, b"__name__") + field(2, name.encode())
    sample = b"\x09" + struct.pack("<d", value) + b"\x10" + varint(at * 1000)
    message = field(1, field(1, label) + field(2, sample))
    return bytes((len(message), (len(message) - 1) << 2)) + message


def varint(number: int) -> bytes:
    """Encode a number as a protobuf varint."""
    return bytes((number & 127 | 128,)) + varint(number >> 7) if number > 127 else bytes((number,))


@pytest.mark.usefixtures("only_soak")
def test_a_run_of_two_machines_is_one_to_the_rules_in_the_middle(
    road: Road, tmp_path: Path, start_training: Callable[..., Process], start_daemon: Callable[..., Daemon]
) -> None:
    other = start_daemon()
    about = {"TRACKSIDE_RUN_NAME": "wide", "TRACKSIDE_RUN_ID": "wide-1", "WORLD_SIZE": "2"}
    write_targets(tmp_path / "agent", other.url.removeprefix("http://").replace("127.0.0.1", "localhost"), rack="a")
    with agent(tmp_path / "agent", road.central.write_url):
        for rank, daemon in enumerate((road.daemon, other)):
            start_training(daemon, "-c", TRAINING, RANK=str(rank), **about)
        rates = 'run_rank:trackside_training_step_duration_seconds:mean5m{run="wide"}'
        eventually(lambda: len(road.central.query(rates)) == 2, pause=SCRAPED)
        [rate] = road.central.query('run:trackside_training_tokens:rate5m{run="wide"}')
        federated = http.get(f"{road.central.url}/federate", params={"match[]": '{__name__=~"run:.*"}'})
    assert rate.labels == {"run": "wide", "rack": "a", **EXTERNAL}
    assert 'run:trackside_training_tokens:rate5m{cluster="main",job="trackside",rack="a"' in federated.text
