"""Commands send no token to an address that another user could have planted."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import processes
import pytest
from processes import DEADLINE, clean_environ, command
from unprivileged_users import launcher

from trackside_daemon.cli.sources.daemon_lookup import endpoint_of

if TYPE_CHECKING:
    from collections.abc import Iterator

VICTIM, ATTACKER = 61201, 61202
SECRET = "hf_ABCDEFGHIJKLMNOPQRSTUVWXYZ"
ONLY_ROOT = pytest.mark.skipif(os.getuid() != 0, reason="only root can be several users")


class Listener:
    """A server that receives requests and answers none."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self.received = b""
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def give_to(self, uid: int) -> None:
        os.fchown(self._socket.fileno(), uid, -1)

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(DEADLINE)
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection:
                self.received += connection.recv(65536)


@pytest.fixture
def listener() -> Iterator[Listener]:
    listener = Listener()
    yield listener
    listener.close()


@pytest.fixture
def planted() -> Iterator[Path]:
    """The directory in which the victim's commands search, made by the attacker."""
    directory = Path(f"/tmp/trackside-{VICTIM}")
    directory.mkdir(mode=0o755)
    os.chown(directory, ATTACKER, ATTACKER)
    yield directory
    shutil.rmtree(directory)


def as_victim(place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    place.chmod(0o755)
    environ = {name: value for name, value in clean_environ().items() if name != "XDG_RUNTIME_DIR"}
    return subprocess.run(
        [*launcher(VICTIM), *command(*arguments)],
        env={**environ, "HOME": str(place), "TRACKSIDE_COLLECTOR__GPU__SIMULATE": "1"},
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )


@ONLY_ROOT
def test_a_planted_directory_gets_no_secret_of_the_victim(planted: Path, place: Path, listener: Listener) -> None:
    secret = place / "secret"
    secret.write_text(SECRET)
    os.chown(secret, VICTIM, VICTIM)
    secret.chmod(0o600)
    # A file of root, as /proc/PID/cmdline of a setuid program is, with the attacker's content.
    address = place / "cmdline"
    address.write_text(f"{listener.address}/#\0")
    (planted / "push.address").symlink_to(address)
    (planted / "push.token").symlink_to(secret)
    ended = as_victim(place, "runs")
    assert listener.received == b""
    assert f"trackside: {planted} belongs to another user, uid {ATTACKER}, so commands ignore it; " in ended.stderr
    first = as_victim(place, "doctor").stdout.splitlines()[0]
    assert listener.received == b""
    assert first == (
        f"FAIL daemon: {planted} belongs to another user, uid {ATTACKER}, so commands ignore it; remove it, or ask an"
        " administrator to"
    )


@pytest.fixture
def written(place: Path, listener: Listener) -> Path:
    """The directory of a daemon of this user, which commands trust."""
    (place / "push.address").write_text(f"{listener.address}\n")
    (place / "push.token").write_text(f"{SECRET}\n")
    (place / "push.token").chmod(0o600)
    endpoint = endpoint_of(place / "push.sock")
    assert endpoint is not None
    assert (endpoint.address, endpoint.token, endpoint.problem) == (listener.address, SECRET, "")
    return place


def refusal(directory: Path, listener: Listener) -> str:
    """Return the line of the doctor about an endpoint to which commands send nothing."""
    environ = {
        "TRACKSIDE_ENDPOINT": f"ipc://{directory}/push.sock",
        "TRACKSIDE_COLLECTOR__GPU__SIMULATE": "1",
        "PATH": "",
    }
    ended = processes.run(command("doctor"), env=clean_environ(environ))
    assert (listener.received, ended.returncode) == (b"", 1)
    return ended.stdout.splitlines()[0].removeprefix("FAIL daemon: ").replace(str(directory), "DIR")


@pytest.mark.parametrize(
    ("name", "mode", "problem"),
    [
        (".", 0o777, "others may write to DIR; run: chmod go-w DIR"),
        (".", 0o770, "others may write to DIR; run: chmod go-w DIR"),
        ("push.address", 0o666, "others may write to DIR/push.address; run: chmod 600 DIR/push.address"),
        ("push.token", 0o640, "others may read DIR/push.token; run: chmod 600 DIR/push.token"),
    ],
)
def test_what_others_can_use_is_ignored(written: Path, listener: Listener, name: str, mode: int, problem: str) -> None:
    (written / name).chmod(mode)
    assert refusal(written, listener) == problem


@pytest.mark.parametrize("name", ["push.address", "push.token"])
@pytest.mark.parametrize("symbolic", [True, False])
def test_links_are_ignored(written: Path, listener: Listener, name: str, symbolic: bool) -> None:
    other = written / "other"
    (written / name).rename(other)
    if symbolic:
        (written / name).symlink_to(other)
    else:
        (written / name).hardlink_to(other)
    kind = "is a symbolic link" if symbolic else "has several names (hard links)"
    assert refusal(written, listener) == f"DIR/{name} {kind}; delete it and restart that daemon"


def test_a_link_to_a_directory_is_ignored(written: Path, listener: Listener) -> None:
    link = written / "link"
    link.symlink_to(written)
    assert refusal(link, listener) == "DIR is a symbolic link; remove it, or name the directory itself"


def test_a_pipe_blocks_no_command(written: Path, listener: Listener) -> None:
    (written / "push.address").unlink()
    os.mkfifo(written / "push.address", 0o600)
    assert refusal(written, listener) == "DIR/push.address: not a regular file; restart that daemon"


@pytest.mark.parametrize(
    "rest",
    [
        *("/#\0", "?x", "\x1b[31m"),
        *(pytest.param(rest, marks=pytest.mark.only_soak) for rest in ("/#", "/x", "\0", "/ ")),
    ],
)
def test_an_address_ends_with_its_port(written: Path, listener: Listener, rest: str) -> None:
    (written / "push.address").write_text(f"{listener.address}{rest}\nx")
    assert refusal(written, listener) == "DIR/push.address: contains no address; restart that daemon"


@pytest.mark.parametrize(
    "host", ["192.0.2.1", "example.org", pytest.param("[2001:db8::1]", marks=pytest.mark.only_soak)]
)
def test_an_address_is_one_of_this_machine(written: Path, listener: Listener, host: str) -> None:
    (written / "push.address").write_text(f"http://{host}:21790\n")
    problem = f"DIR/push.address: {host.strip('[]')} is not an address of this machine"
    assert refusal(written, listener) == f"{problem}; delete the file and restart that daemon"


def test_a_daemon_at_any_address_of_this_machine_is_found(written: Path) -> None:
    for host, asked in {"0.0.0.0": "127.0.0.1", "127.8.8.8": "127.8.8.8", "[::]": "[::1]"}.items():
        (written / "push.address").write_text(f"https://{host}:21790\n")
        endpoint = endpoint_of(written / "push.sock")
        assert endpoint is not None
        assert (endpoint.address, endpoint.problem) == (f"https://{asked}:21790", "")


@ONLY_ROOT
def test_another_user_at_the_address_of_a_killed_daemon_gets_no_token(written: Path, listener: Listener) -> None:
    with socket.create_server(("127.0.0.2", int(listener.address.rpartition(":")[2]))) as other:
        os.fchown(other.fileno(), ATTACKER, -1)
        endpoint = endpoint_of(written / "push.sock")
        assert endpoint is not None
        assert endpoint.problem == ""  # nobody reaches the other by this address
    listener.give_to(ATTACKER)
    problem = f"DIR/push.address: uid {ATTACKER} listens at {listener.address}, and not that daemon"
    assert refusal(written, listener) == f"{problem}; restart that daemon"


def test_in_a_directory_such_as_tmp_the_files_of_this_user_count(written: Path) -> None:
    written.chmod(0o1777)
    endpoint = endpoint_of(written / "push.sock")
    assert endpoint is not None
    assert endpoint.problem == ""
    if os.getuid() == 0:
        os.chown(written / "push.token", ATTACKER, ATTACKER)
        endpoint = endpoint_of(written / "push.sock")
        assert endpoint is not None
        assert endpoint.problem.endswith(f"belongs to another user, uid {ATTACKER}")
        os.chown(written / "push.address", ATTACKER, ATTACKER)
        assert endpoint_of(written / "push.sock") is None
