"""Access to the push socket over real TCP: with a valid key, a wrong one, and none."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import pytest
import zmq
from processes import eventually
from served_sockets import ServedSocket
from wire_messages import PATIENCE_MILLISECONDS

from trackside.environment.keys import ClientKey, for_endpoint
from trackside_daemon.ingest.keyring import Keyring, make

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Connect = Callable[[str, ClientKey | None], zmq.Socket[bytes]]


@pytest.fixture
def directory(place: Path) -> Path:
    """Keys of a daemon and of the client gpu7."""
    make(place / "keys", ["gpu7"])
    return place / "keys"


@pytest.fixture
def bound(place: Path, directory: Path) -> Iterator[ServedSocket]:
    """A push socket at a port, with keys, and at a file."""
    one = ServedSocket(["tcp://127.0.0.2:*", f"ipc://{place}/push.sock"], keys=str(directory))
    yield one
    one.close()


@pytest.fixture
def connect() -> Iterator[Connect]:
    """A function that connects with a key, or without, as the client does."""
    context = zmq.Context()
    sockets: list[zmq.Socket[bytes]] = []

    def start(endpoint: str, key: ClientKey | None) -> zmq.Socket[bytes]:
        sockets.append(one := context.socket(zmq.DEALER))
        one.linger = 0
        one.immediate = True
        if key is not None:
            key.lock(one)
        one.connect(endpoint)
        return one

    yield start
    for one in sockets:
        one.close()
    context.term()


def key(directory: Path, name: str = "gpu7") -> ClientKey:
    file = directory / "clients" / f"{name}.key"
    found = for_endpoint("tcp://127.0.0.2:1", {"TRACKSIDE_KEY_FILE": str(file)})
    assert found is not None
    return found


def assert_no_secrets(text: str, *directories: Path) -> None:
    """Check that no secret key of these directories is in a text."""
    secrets = [one for directory in directories for one in (Keyring(directory).secret, key(directory).secret)]
    assert not any(secret.decode() in text for secret in secrets)


def speaks(bound: ServedSocket, client: zmq.Socket[bytes]) -> bool:
    """Return whether a message and its answer pass between the sockets."""
    assert client.poll(PATIENCE_MILLISECONDS, zmq.POLLOUT)
    client.send(b"hello")
    connection, frames = bound.receive()
    bound.answer(connection, frames)
    return client.poll(PATIENCE_MILLISECONDS) > 0 and client.recv() == b"hello"


def test_a_unix_socket_needs_no_key_and_is_bound_beside_the_port(
    bound: ServedSocket, place: Path, directory: Path, connect: Connect
) -> None:
    assert bound.endpoints[1] == f"ipc://{place}/push.sock"
    assert bound.token == place / "push.token"
    assert speaks(bound, connect(bound.endpoints[1], None))
    assert speaks(bound, connect(bound.endpoints[0], key(directory)))
    assert bound.refused("key") == 0


def test_an_unknown_key_is_refused_counted_and_logged_once(
    bound: ServedSocket,
    place: Path,
    directory: Path,
    connect: Connect,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("DEBUG", logger="trackside")
    make(place / "other", ["gpu7"])
    stranger = key(place / "other")
    wrong = ClientKey(stranger.file, stranger.secret, stranger.public, key(directory).daemon)
    sockets = [connect(bound.endpoints[0], wrong) for _ in range(3)]
    eventually(lambda: bound.refused("key") >= 3)
    assert not any(one.poll(0, zmq.POLLOUT) for one in sockets)
    assert caplog.messages == [
        f"a client at 127.0.0.1 was refused: its key is not in {directory}/authorized; further ones from there are only counted"
    ]
    assert_no_secrets(caplog.text, directory, place / "other")
    assert speaks(bound, connect(bound.endpoints[0], key(directory)))


@pytest.mark.parametrize("owner", ["nobody's", "another daemon's"])
def test_a_handshake_in_the_clear_or_for_another_daemon_is_refused_and_logged_once(
    bound: ServedSocket, directory: Path, connect: Connect, caplog: pytest.LogCaptureFixture, owner: str
) -> None:
    caplog.set_level("DEBUG", logger="trackside")
    make(directory / "other", ["gpu7"])
    sockets = []

    def knock() -> bool:  # whoever hangs up before the daemon has read what is wrong is not counted
        sockets.append(connect(bound.endpoints[0], None if owner == "nobody's" else key(directory / "other")))
        return bound.refused("key") >= 3

    eventually(knock)
    assert not any(one.poll(0, zmq.POLLOUT) for one in sockets)
    reason = "it has no key, or one for another daemon; see TRACKSIDE_KEY_FILE"
    assert caplog.messages == [
        f"a client at {bound.endpoints[0]} was refused: {reason}; further ones from there are only counted"
    ]
    assert_no_secrets(caplog.text, directory, directory / "other")
    assert speaks(bound, connect(bound.endpoints[0], key(directory)))


def test_clients_are_added_and_removed_while_the_daemon_runs(
    bound: ServedSocket, directory: Path, connect: Connect
) -> None:
    held = key(directory)
    assert speaks(bound, connect(bound.endpoints[0], held))
    make(directory, ["gpu8"])
    assert speaks(bound, connect(bound.endpoints[0], key(directory, "gpu8")))
    (directory / "authorized" / "gpu7.pub").unlink()
    again = connect(bound.endpoints[0], held)
    eventually(lambda: bound.refused("key") >= 1)
    assert not again.poll(0, zmq.POLLOUT)


def test_rubbish_that_is_no_handshake_costs_nothing(bound: ServedSocket, directory: Path, connect: Connect) -> None:
    host, _, port = bound.endpoints[0].removeprefix("tcp://").rpartition(":")
    for rubbish in (b"", b"GET / HTTP/1.0\r\n\r\n", os.urandom(4096)):
        with socket.create_connection((host, int(port))) as raw:
            raw.sendall(rubbish)
    assert speaks(bound, connect(bound.endpoints[0], key(directory)))


def test_two_keys_of_the_daemon_are_valid_at_a_time_each_at_its_port(
    place: Path, directory: Path, connect: Connect
) -> None:
    old = key(directory)
    with socket.socket() as free:
        free.bind(("127.0.0.2", 0))
        port = free.getsockname()[1]
    (directory / "daemon.key").rename(directory / f"daemon-{port}.key")
    make(directory, ["gpu7-new"])
    new = key(directory, "gpu7-new")
    assert new.daemon != old.daemon
    bound = ServedSocket([f"tcp://127.0.0.2:{port}", "tcp://127.0.0.2:*"], keys=str(directory))
    try:
        assert speaks(bound, connect(bound.endpoints[0], old))
        assert speaks(bound, connect(bound.endpoints[1], new))
        assert bound.refused("key") == 0
        connect(bound.endpoints[1], old)
        eventually(lambda: bound.refused("key") >= 1)
    finally:
        bound.close()
