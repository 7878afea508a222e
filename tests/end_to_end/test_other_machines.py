"""A training on another machine: the real command makes the keys, and the real daemon and client use them.

An address of this machine's network stands for another machine: any address that is not loopback is one to both.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
from typing import TYPE_CHECKING

import psutil
import pytest
from end_to_end.conftest import finish
from processes import DEADLINE, command, eventually, lasting_daemon, run, run_here

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
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


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The keys that `trackside keys` makes for the client gpu7."""
    made = tmp_path_factory.mktemp("made") / "keys"
    done = run_here("keys", str(made), "--client", "gpu7")
    assert (done.returncode, done.stderr) == (0, "")
    return made


def with_keys(keys: Path, address: str) -> AbstractContextManager[Daemon]:
    return lasting_daemon(f"--push.endpoint=tcp://{address}:0", f"--push.keys={keys}")


def tcp(daemon: Daemon) -> Daemon:
    """Return a daemon with its port in the place of its socket."""
    (daemon.endpoint,) = (one for one in daemon.api("status").json()["push_endpoints"] if one.startswith("tcp://"))
    return daemon


@pytest.fixture(scope="module")
def remote(keys: Path, address: str) -> Iterator[Daemon]:
    """A daemon that accepts pushes at a port of the network, too; its endpoint is that port."""
    with with_keys(keys, address) as daemon:
        yield tcp(daemon)


@pytest.fixture
def start(start_training: Callable[..., Process]) -> Callable[..., Process]:
    """A function that starts the training with or without a key file; the training ends when its input does."""

    def begin(daemon: Daemon, key: Path | None, name: str = "far") -> Process:
        named = {"TRACKSIDE_KEY_FILE": str(key)} if key is not None else {}
        return start_training(daemon, "-c", TRAINING, TRACKSIDE_RUN_NAME=name, **named)

    return begin


def complaint(training: Process) -> str:
    """Return the one line that a training logs; check that it continues and exits with status 0."""
    assert training.stderr is not None
    line = training.stderr.readline()
    printed, rest = training.communicate("\n", timeout=DEADLINE)
    assert (training.returncode, printed, rest) == (0, "trained on\n", ""), line
    return line


def test_with_its_key_a_training_of_another_machine_is_on_the_page_and_no_secret(
    remote: Daemon, keys: Path, start: Callable[..., Process]
) -> None:
    file = keys / "clients" / "gpu7.key"
    training = start(remote, file)
    eventually(lambda: remote.series().get(STEPS) == 1)
    finish(training)
    assert remote.series()[REFUSED] == 0
    assert remote.series()['trackside_training_state{run="far",state="finished"}'] == 1
    pages = remote.get("/metrics").text + remote.api("status").text + remote.api("runs").text
    kept = b"".join(one.read_bytes() for one in remote.history.iterdir())
    for secret in (file.read_text().split('"')[1], (keys / "daemon.key").read_text().split('"')[1]):
        assert len(secret) == 40
        assert secret not in pages + "".join(remote.log)
        assert secret.encode() not in kept


def test_without_a_key_or_with_a_file_of_no_use_nothing_is_sent_and_the_training_logs_one_line(
    remote: Daemon, keys: Path, start: Callable[..., Process], tmp_path: Path
) -> None:
    good = keys / "clients" / "gpu7.key"
    secret = good.read_text().split('"')[1]
    (tmp_path / "malformed.key").write_text(f'secret-key = "{secret}')
    (tmp_path / "malformed.key").chmod(0o600)
    shutil.copy(good, tmp_path / "readable.key")
    (tmp_path / "readable.key").chmod(0o644)
    none = (
        "pushing to another machine needs a key: create one with `trackside keys` on the daemon's machine, copy its file"
        " here, and name it in $TRACKSIDE_KEY_FILE"
    )
    creates = "; `trackside keys` creates them"
    reasons: dict[Path | None, str] = {
        None: none,
        tmp_path / "missing.key": f"{tmp_path}/missing.key: no such file or directory",
        tmp_path
        / "readable.key": f"{tmp_path}/readable.key: others may read it, and it is secret: chmod 600 {tmp_path}/readable.key",
        tmp_path / "malformed.key": f"{tmp_path}/malformed.key: not a key file for this: it has no secret-key{creates}",
        keys / "daemon.key": f"{keys}/daemon.key: not a key file for this: it has no daemon-key{creates}",
    }
    refused = remote.series()[REFUSED]
    trainings = [(start(remote, key), reason) for key, reason in reasons.items()]
    for training, reason in trainings:
        reported = complaint(training)
        assert reported.startswith(f"trackside: no daemon found at {remote.endpoint} ({reason}); training goes on")
        assert secret not in reported
    assert remote.series()[REFUSED] == refused, "they did not even try"


def test_on_this_machine_a_port_with_keys_wants_one_too_and_an_unknown_key_is_refused_counted_and_logged(
    keys: Path, start: Callable[..., Process]
) -> None:
    file = keys / "clients" / "gpu7.key"
    with with_keys(keys, "127.0.0.1") as daemon:
        tcp(daemon)
        assert f"{daemon.endpoint} (does not answer, or needs a key, and $TRACKSIDE_KEY_FILE names none)" in complaint(
            start(daemon, None)
        )
        assert STEPS not in daemon.series()
        training = start(daemon, file)
        eventually(lambda: daemon.series().get(STEPS) == 1)
        finish(training)
        refused = daemon.series()[REFUSED]
        known = keys / "authorized" / "gpu7.pub"
        known.rename(keys / "gpu7.away")
        try:
            training = start(daemon, file, "unknown")
            eventually(lambda: daemon.series()[REFUSED] > refused)
            assert complaint(training).startswith(
                f"trackside: no daemon found at {daemon.endpoint} (does not answer, or refuses the key in {file}); training goes on"
            )
        finally:
            (keys / "gpu7.away").rename(known)
        assert not [name for name in daemon.series() if "unknown" in name]
        daemon.stop()
        reported = [line for line in daemon.log if "was refused: its key" in line]
        assert len(reported) == 1
        assert f"was refused: its key is not in {keys}/authorized; further ones from there" in reported[0]


def test_a_port_of_ipv6_is_reached(start: Callable[..., Process]) -> None:
    with lasting_daemon("--push.endpoint=tcp://[::1]:0") as daemon:
        training = start(tcp(daemon), None)
        eventually(lambda: daemon.series().get(STEPS) == 1)
        finish(training)


def test_the_command_prints_what_it_made_and_what_to_do_with_it(tmp_path: Path) -> None:
    made = tmp_path / "keys"
    done = run_here("keys", str(made), "--client", "gpu7", "--client", "gpu8")
    assert (done.returncode, done.stderr) == (0, "")
    listed = [line.split(": ")[0] for line in done.stdout.splitlines() if line.startswith("made ")]
    files = ["daemon.key", "clients/gpu7.key", "authorized/gpu7.pub", "clients/gpu8.key", "authorized/gpu8.pub"]
    assert listed == [f"made {made}/{file}" for file in files]
    assert f"    trackside daemon --push.endpoint=tcp://0.0.0.0:21791 --push.keys={made}\n" in done.stdout
    assert f"TRACKSIDE_ENDPOINT=tcp://{socket.gethostname()}:21791 TRACKSIDE_KEY_FILE=/PATH/gpu7.key\n" in done.stdout
    assert '"' not in done.stdout, "no key is printed"
    again = run_here("keys", str(made), "--client", "gpu7")
    reason = "exists and is not overwritten; choose another name, or delete it first"
    assert (again.returncode, again.stdout) == (2, "")
    assert again.stderr == f"trackside: {made}/clients/gpu7.key {reason}\n"


def test_without_a_name_there_is_one_client_and_a_second_time_nothing_is_made(tmp_path: Path) -> None:
    assert run_here("keys", str(tmp_path / "keys")).returncode == 0
    assert (tmp_path / "keys" / "clients" / "client.key").exists()
    again = run_here("keys", str(tmp_path / "keys"))
    assert (again.returncode, again.stdout) == (2, "")
    assert (
        again.stderr == f"trackside: {tmp_path}/keys/daemon.key exists and is kept; add a client with --client NAME\n"
    )


def test_a_daemon_beyond_this_machine_without_keys_is_one_line(place: Path, address: str) -> None:
    done = run(command("daemon", f"--push.endpoint=tcp://{address}:0", "--web.listen-address=127.0.0.1:0"))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"trackside: tcp://{address}:0: other machines reach it, so clients need keys: make them with `trackside keys DIR`"
        " and start with --push.keys=DIR\n"
    )
    assert not list(place.iterdir())
