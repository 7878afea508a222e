"""`trackside pause-gpu` and `resume-gpu`, with a daemon that reads simulated GPUs."""

from __future__ import annotations

import re
from datetime import datetime
from typing import TYPE_CHECKING

import pytest
from processes import LEAN, eventually, lasting_daemon, run_here

from trackside_daemon.cli.commands.gpu import paused
from trackside_daemon.cli.sources.daemon_lookup import local_endpoints

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from processes import Daemon


def run(daemon: Daemon | str, *arguments: str) -> tuple[int, str, str]:
    """Run a command as the user of a daemon, or with an endpoint where none listens; return its status and output."""
    endpoint = daemon if isinstance(daemon, str) else daemon.endpoint
    done = run_here(*arguments, environ={"TRACKSIDE_ENDPOINT": endpoint, "XDG_RUNTIME_DIR": "/nowhere"})
    return done.returncode, done.stdout, done.stderr


def has_gpus(daemon: Daemon) -> bool:
    return any(name.startswith("trackside_gpu_utilization_ratio") for name in daemon.series())


@pytest.fixture(scope="module")
def simulating() -> Iterator[Daemon]:
    with lasting_daemon("--collector.gpu.simulate=2", "--sample.interval=250ms", *LEAN) as daemon:
        eventually(lambda: has_gpus(daemon))
        yield daemon


def test_a_pause_removes_the_gpus_from_the_page_until_it_is_ended(simulating: Daemon) -> None:
    status, printed, complaints = run(simulating, "pause-gpu", "--for", "10m")
    assert (status, complaints) == (0, "")
    assert re.fullmatch(r"paused until (\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d; the device files are closed\n", printed)
    eventually(lambda: not has_gpus(simulating))
    series = eventually(simulating.series)
    assert series['trackside_nvml_worker_restarts_total{reason="pause"}'] == 1.0
    assert "trackside_gpus_visible" not in series, "they are not counted"
    assert run(simulating, "resume-gpu") == (0, "resumed\n", "")
    eventually(lambda: has_gpus(simulating))


def test_both_commands_may_be_repeated(simulating: Daemon) -> None:
    for _ in range(2):
        assert run(simulating, "pause-gpu") == (
            *(0, "paused until you run trackside resume-gpu; the device files are closed\n"),
            "",
        )
    answers = [run(simulating, "resume-gpu") for _ in range(2)]
    assert answers == [(0, "resumed\n", ""), (0, "the GPUs were not paused\n", "")]


def test_a_pause_that_ends_by_itself_is_over(simulating: Daemon) -> None:
    assert run(simulating, "pause-gpu", "--for=1ms")[0] == 0
    eventually(lambda: simulating.api("status").json()["nvml"]["paused_until"] is None)
    eventually(lambda: has_gpus(simulating))


@pytest.mark.parametrize("length", ["10", "soon", "0", "-1s", "10x"])
def test_a_length_that_is_none_is_one_line(length: str) -> None:
    assert run("ipc:///nowhere/push.sock", "pause-gpu", f"--for={length}") == (
        *(2, ""),
        f"trackside: --for: {length!r} is not a duration such as 10m or 1h30m\n",
    )


@pytest.mark.parametrize("name", ["pause-gpu", "resume-gpu"])
def test_without_a_daemon_the_command_reports_it(name: str) -> None:
    unused = "http://127.0.0.1:9"
    status, printed, complaints = run("ipc:///nowhere/push.sock", name, f"--url={unused}")
    assert (status, printed) == (1, "")
    assert complaints == f"trackside: {unused}: the daemon does not answer: connection refused\n"


@pytest.mark.parametrize(
    "url", ["http://[::1", "[::1", "http://127.0.0.1:99999", "127.0.0.1:port", "ftp://x", "http://"]
)
def test_an_address_that_is_none_is_one_line(url: str) -> None:
    assert run("ipc:///nowhere/push.sock", "pause-gpu", f"--url={url}") == (
        *(2, ""),
        f"trackside: --url: {url!r} is not an address such as http://127.0.0.1:21790\n",
    )


@pytest.mark.parametrize("url", ["http://a..b", "http://127.0.0.1:9/\u00e9", "http://127.0.0.1:9/a b"])
def test_an_address_that_no_request_can_be_sent_to_is_one_line(url: str) -> None:
    status, printed, complaints = run("ipc:///nowhere/push.sock", "pause-gpu", f"--url={url}")
    assert (status, printed, complaints.count("\n")) == (1, "", 1)
    assert complaints.startswith(f"trackside: {url}: the daemon does not answer: ")


@pytest.mark.parametrize("endpoint", ["ipc://", "ipc:///", "ipc://.", "ipc://..", "ipc:///nowhere/"])
def test_an_endpoint_that_is_no_socket_leads_to_no_daemon(endpoint: str) -> None:
    assert run(endpoint, "resume-gpu", "--url=http://127.0.0.1:9")[2].startswith("trackside: http://127.0.0.1:9: the")


@pytest.mark.parametrize("address", ["http://[::1", "http://127.0.0.1:99999", "httpd", "ftp://127.0.0.1:9", ""])
def test_a_note_without_an_address_is_reported(place: Path, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKSIDE_ENDPOINT", f"ipc://{place}/push.sock")
    (place / "push.token").write_text("secret\n")
    (place / "push.token").chmod(0o600)
    (place / "push.address").write_text(address)
    assert next(local_endpoints()).problem == f"{place}/push.address: contains no address"


def test_the_process_that_holds_the_device_files_is_named() -> None:
    holder = {"pid": 4711, "name": "python\n"}
    until = "until you run trackside resume-gpu"
    assert paused({"released": True, "paused_until": "inf", "holders": [holder, {"pid": 12, "name": "nvtop"}]}) == (
        f"paused {until}; the device files are still open in python\\n (pid 4711), nvtop (pid 12)"
    )


@pytest.mark.parametrize(
    ("end", "reported"),
    [
        (
            None,
            "the pause is already over, and the daemon reads the GPUs again; a longer --for keeps their device files closed",
        ),
        ("inf", "paused until you run trackside resume-gpu; the device files are closed"),
        (
            datetime(2001, 9, 9, 12, 30).astimezone().timestamp(),
            "paused until 2001-09-09 12:30:00; the device files are closed",
        ),
    ],
)
def test_a_pause_is_over_or_has_an_end_or_none(end: float | str | None, reported: str) -> None:
    assert paused({"released": True, "paused_until": end, "holders": []}) == reported


def test_a_pause_that_is_over_while_its_worker_hangs_is_reported_as_that() -> None:
    assert paused({"released": False, "paused_until": None, "holders": []}) == (
        "the pause is already over, but the process that reads the GPUs hangs in the driver; a reboot ends it"
    )


def test_a_worker_that_does_not_end_is_reported_with_what_ends_it() -> None:
    answered = {"released": False, "paused_until": "inf", "holders": []}
    assert paused(answered) == (
        "paused until you run trackside resume-gpu, but the process that reads the GPUs hangs in the driver; "
        "a reboot ends it"
    )
