"""A training on another machine: the real command makes the keys, and the real daemon and client use them.

An address of this machine's network stands for another machine: any address that is not loopback is one to both.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
from typing import TYPE_CHECKING

import processes
import psutil
import pytest
from end_to_end.conftest import finish
from processes import DEADLINE, command, eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from end_to_end.conftest import Process
    from processes import Daemon

DUMMY = "198.51.100.1"
"""For documentation only, RFC 5737; given to the loopback interface where a machine has no network."""

TRAINING = """
import logging, os, sys
logging.basicConfig(format="%(message)s")
import trackside
trackside.push(step=1, loss=0.5)
sys.stdin.readline()
trackside.finish()
print("trained on")
"""
STEPS = 'trackside_training_steps_total{rank="0",run="far"}'
REFUSED = 'trackside_ingest_rejected_total{reason="key"}'


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """An address of this machine that is not loopback."""
    found = [
        one.address
        for several in psutil.net_if_addrs().values()
        for one in several
        if one.family is socket.AF_INET and not one.address.startswith("127.")
    ]
    if found:
        yield found[0]
        return
    subprocess.run(["ip", "address", "add", f"{DUMMY}/32", "dev", "lo"], check=True)
    yield DUMMY
    subprocess.run(["ip", "address", "del", f"{DUMMY}/32", "dev", "lo"], check=True)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return processes.run(command(*arguments))


@pytest.fixture
def keys(place: Path) -> Path:
    """The keys that `trackside keys` makes for the client gpu7."""
    done = run("keys", str(place / "keys"), "--client", "gpu7")
    assert (done.returncode, done.stderr) == (0, "")
    return place / "keys"


@pytest.fixture
def remote(start_daemon: Callable[..., Daemon], keys: Path, address: str) -> Daemon:
    """A daemon that accepts pushes at a port of the network, too; its endpoint is that port."""
    daemon = start_daemon(f"--push.endpoint=tcp://{address}:0", f"--push.keys={keys}")
    (daemon.endpoint,) = (one for one in daemon.api("status").json()["push_endpoints"] if one.startswith("tcp://"))
    return daemon


@pytest.fixture
def start(start_training: Callable[..., Process]) -> Callable[..., Process]:
    """A function that starts the training with or without a key file; the training ends when its input does."""

    def begin(daemon: Daemon, key: Path | None, **environ: str) -> Process:
        named = {"TRACKSIDE_KEY_FILE": str(key)} if key is not None else {}
        return start_training(daemon, "-c", TRAINING, TRACKSIDE_RUN_NAME="far", **named, **environ)

    return begin


def complaint(training: Process) -> str:
    """Return the one line that a training logs; check that it continues and exits with status 0."""
    assert training.stderr is not None
    line = training.stderr.readline()
    printed, rest = training.communicate("\n", timeout=DEADLINE)
    assert (training.returncode, printed, rest) == (0, "trained on\n", ""), line
    return line


def test_with_its_key_a_training_of_another_machine_is_on_the_page(
    remote: Daemon, keys: Path, start: Callable[..., Process]
) -> None:
    training = start(remote, keys / "clients" / "gpu7.key")
    eventually(lambda: remote.series().get(STEPS) == 1)
    finish(training)
    assert remote.series()[REFUSED] == 0
    assert remote.series()['trackside_training_state{run="far",state="finished"}'] == 1


def test_an_unknown_key_is_refused_counted_and_costs_the_training_one_line(
    remote: Daemon, keys: Path, start: Callable[..., Process]
) -> None:
    known = keys / "authorized" / "gpu7.pub"
    known.rename(keys / "gpu7.away")
    file = keys / "clients" / "gpu7.key"
    training = start(remote, file)
    eventually(lambda: remote.series()[REFUSED] >= 1)
    assert complaint(training).startswith(
        f"trackside: no daemon found at {remote.endpoint} (does not answer, or refuses the key in {file}); training goes on"
    )
    assert STEPS not in remote.series()
    remote.stop()
    address = remote.endpoint.removeprefix("tcp://").rpartition(":")[0]
    (reported,) = (line for line in remote.log if "was refused" in line)
    assert (
        f"a client at {address} was refused: its key is not in {keys}/authorized; further ones from there" in reported
    )


def test_without_a_key_nothing_is_sent_to_another_machine(remote: Daemon, start: Callable[..., Process]) -> None:
    assert complaint(start(remote, None)).startswith(
        f"trackside: no daemon found at {remote.endpoint} (pushing to another machine needs a key: create one with"
        " `trackside keys` on the daemon's machine, copy its file here, and name it in $TRACKSIDE_KEY_FILE); training goes on"
    )
    assert remote.series()[REFUSED] == 0, "it did not even try"


def test_a_key_file_that_is_no_use_costs_the_training_one_line(
    remote: Daemon, keys: Path, start: Callable[..., Process]
) -> None:
    good = keys / "clients" / "gpu7.key"
    secret = good.read_text().split('"')[1]
    (keys / "malformed.key").write_text(f'secret-key = "{secret}')
    (keys / "malformed.key").chmod(0o600)
    shutil.copy(good, keys / "readable.key")
    (keys / "readable.key").chmod(0o644)
    reasons = {
        "missing.key": "no such file or directory",
        "readable.key": f"others may read it, and it is secret: chmod 600 {keys}/readable.key",
        "malformed.key": "not a key file for this: it has no secret-key; `trackside keys` creates them",
        "daemon.key": "not a key file for this: it has no daemon-key; `trackside keys` creates them",
    }
    trainings = {keys / name: start(remote, keys / name) for name in reasons}
    for file, training in trainings.items():
        reported = complaint(training)
        reason = f"{remote.endpoint} ({file}: {reasons[file.name]})"
        assert reported.startswith(f"trackside: no daemon found at {reason}; training goes on")
        assert secret not in reported
    assert remote.series()[REFUSED] == 0


def test_on_this_machine_a_port_with_keys_wants_one_too(
    start_daemon: Callable[..., Daemon], keys: Path, start: Callable[..., Process]
) -> None:
    daemon = start_daemon("--push.endpoint=tcp://127.0.0.1:0", f"--push.keys={keys}")
    (daemon.endpoint,) = (one for one in daemon.api("status").json()["push_endpoints"] if one.startswith("tcp://"))
    assert f"{daemon.endpoint} (does not answer, or needs a key, and $TRACKSIDE_KEY_FILE names none)" in complaint(
        start(daemon, None)
    )
    assert STEPS not in daemon.series()
    training = start(daemon, keys / "clients" / "gpu7.key")
    eventually(lambda: daemon.series().get(STEPS) == 1)
    finish(training)


def test_a_port_of_ipv6_is_reached(start_daemon: Callable[..., Daemon], start: Callable[..., Process]) -> None:
    daemon = start_daemon("--push.endpoint=tcp://[::1]:0")
    (daemon.endpoint,) = (one for one in daemon.api("status").json()["push_endpoints"] if one.startswith("tcp://"))
    training = start(daemon, None)
    eventually(lambda: daemon.series().get(STEPS) == 1)
    finish(training)


def test_no_secret_is_in_the_log_in_the_history_or_on_a_page(
    remote: Daemon, keys: Path, start: Callable[..., Process]
) -> None:
    file = keys / "clients" / "gpu7.key"
    training = start(remote, file)
    eventually(lambda: remote.series().get(STEPS) == 1)
    finish(training)
    pages = remote.get("/metrics").text + remote.api("status").text + remote.api("runs").text
    remote.stop()
    kept = b"".join(one.read_bytes() for one in remote.history.iterdir())
    for secret in (file.read_text().split('"')[1], (keys / "daemon.key").read_text().split('"')[1]):
        assert len(secret) == 40
        assert secret not in pages + "".join(remote.log)
        assert secret.encode() not in kept


def test_the_command_prints_what_it_made_and_what_to_do_with_it(place: Path) -> None:
    done = run("keys", str(place / "keys"), "--client", "gpu7", "--client", "gpu8")
    assert (done.returncode, done.stderr) == (0, "")
    made = [line.split(": ")[0] for line in done.stdout.splitlines() if line.startswith("made ")]
    files = ["daemon.key", "clients/gpu7.key", "authorized/gpu7.pub", "clients/gpu8.key", "authorized/gpu8.pub"]
    assert made == [f"made {place}/keys/{file}" for file in files]
    assert f"    trackside daemon --push.endpoint=tcp://0.0.0.0:21791 --push.keys={place}/keys\n" in done.stdout
    assert f"TRACKSIDE_ENDPOINT=tcp://{socket.gethostname()}:21791 TRACKSIDE_KEY_FILE=/PATH/gpu7.key\n" in done.stdout
    assert '"' not in done.stdout, "no key is printed"


def test_without_a_name_there_is_one_client_and_a_second_time_nothing_is_made(place: Path) -> None:
    assert run("keys", str(place / "keys")).returncode == 0
    assert (place / "keys" / "clients" / "client.key").exists()
    again = run("keys", str(place / "keys"))
    assert (again.returncode, again.stdout) == (2, "")
    expected = f"trackside: {place}/keys/daemon.key exists and is kept; add a client with --client NAME\n"
    assert again.stderr == expected


def test_what_cannot_be_made_is_one_line(keys: Path) -> None:
    done = run("keys", str(keys), "--client", "gpu7")
    assert (done.returncode, done.stdout) == (2, "")
    expected = (
        f"trackside: {keys}/clients/gpu7.key exists and is not overwritten; choose another name, or delete it first\n"
    )
    assert done.stderr == expected


def test_a_daemon_beyond_this_machine_without_keys_is_one_line(place: Path, address: str) -> None:
    done = run("daemon", f"--push.endpoint=tcp://{address}:0", "--web.listen-address=127.0.0.1:0")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"trackside: tcp://{address}:0: other machines reach it, so clients need keys: make them with `trackside keys DIR`"
        " and start with --push.keys=DIR\n"
    )
    assert not list(place.iterdir())
