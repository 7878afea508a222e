"""Access to the push socket over real TCP: with a valid key, a wrong one, and none."""

from __future__ import annotations

import os
import socket
import threading
from typing import TYPE_CHECKING

import pytest
import zmq
from processes import eventually
from wire_messages import PATIENCE_MILLISECONDS
from zmq.utils.monitor import recv_monitor_message

from trackside.transport.keys import ClientKey, for_endpoint
from trackside_daemon.ingest.endpoint import EndpointError
from trackside_daemon.ingest.keyring import Keyring, make
from trackside_daemon.ingest.push_socket import PushSocket

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
def bound(place: Path, directory: Path) -> Iterator[PushSocket]:
    """A push socket at a port, with keys, and at a file."""
    one = PushSocket(["tcp://127.0.0.2:*", f"ipc://{place}/push.sock"], keys=str(directory))
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


def speaks(bound: PushSocket, client: zmq.Socket[bytes]) -> bool:
    """Return whether a message and its answer pass between the sockets."""
    assert client.poll(PATIENCE_MILLISECONDS, zmq.POLLOUT)
    client.send(b"hello")
    assert bound.socket.poll(PATIENCE_MILLISECONDS)
    peer, message = bound.socket.recv_multipart()
    bound.socket.send_multipart([peer, message])
    return client.poll(PATIENCE_MILLISECONDS) > 0 and client.recv() == b"hello"


def authenticators() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name == "trackside-authenticator"]


def test_the_right_key_gets_through(bound: PushSocket, directory: Path, connect: Connect) -> None:
    assert speaks(bound, connect(bound.endpoints[0], key(directory)))
    assert bound.rejected() == {"key": 0}


def test_a_unix_socket_needs_no_key_and_is_bound_beside_the_port(
    bound: PushSocket, place: Path, directory: Path, connect: Connect
) -> None:
    assert bound.endpoints[1] == f"ipc://{place}/push.sock"
    assert bound.token == place / "push.token"
    assert speaks(bound, connect(bound.endpoints[1], None))
    assert speaks(bound, connect(bound.endpoints[0], key(directory)))
    assert bound.rejected() == {"key": 0}


def test_an_unknown_key_is_refused_counted_and_told_once(
    bound: PushSocket,
    place: Path,
    directory: Path,
    connect: Connect,
    caplog: pytest.LogCaptureFixture,
) -> None:
    make(place / "other", ["gpu7"])
    stranger = key(place / "other")
    wrong = ClientKey(stranger.file, stranger.secret, stranger.public, key(directory).daemon)
    sockets = [connect(bound.endpoints[0], wrong) for _ in range(3)]
    eventually(lambda: bound.rejected()["key"] >= 3)
    assert not any(one.poll(0, zmq.POLLOUT) for one in sockets)
    assert not bound.socket.poll(0)
    assert caplog.messages == [
        f"a client at 127.0.0.1 was refused: its key is not in {directory}/authorized; further ones from there are only counted"
    ]
    assert speaks(bound, connect(bound.endpoints[0], key(directory)))


@pytest.mark.parametrize("whose", ["nobody's", "another daemon's"])
def test_a_handshake_in_the_clear_or_for_another_daemon_is_refused_and_told_once(
    bound: PushSocket, directory: Path, connect: Connect, caplog: pytest.LogCaptureFixture, whose: str
) -> None:
    make(directory / "other", ["gpu7"])
    sockets = []

    def knock() -> bool:  # whoever hangs up before the daemon has read what is wrong is not counted
        sockets.append(connect(bound.endpoints[0], None if whose == "nobody's" else key(directory / "other")))
        return bound.rejected()["key"] >= 3

    eventually(knock)
    assert not any(one.poll(0, zmq.POLLOUT) for one in sockets)
    assert not bound.socket.poll(0)
    reason = "it has no key, or one for another daemon; see TRACKSIDE_KEY_FILE"
    assert caplog.messages == [
        f"a client at {bound.endpoints[0]} was refused: {reason}; further ones from there are only counted"
    ]
    assert speaks(bound, connect(bound.endpoints[0], key(directory)))


def test_no_key_is_in_the_log(
    bound: PushSocket,
    place: Path,
    directory: Path,
    connect: Connect,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("DEBUG", logger="trackside")
    make(place / "other", ["gpu7"])
    stranger = key(place / "other")
    wrong = ClientKey(stranger.file, stranger.secret, stranger.public, key(directory).daemon)
    assert speaks(bound, connect(bound.endpoints[0], key(directory)))
    for one in (wrong, stranger):
        connect(bound.endpoints[0], one)
    eventually(lambda: len(caplog.messages) == 2)
    secrets = [Keyring(one).secret.decode() for one in (directory, place / "other")]
    secrets += [key(one).secret.decode() for one in (directory, place / "other")]
    assert not any(secret in caplog.text for secret in secrets)


def test_a_client_that_is_added_while_the_daemon_runs_gets_through(
    bound: PushSocket, directory: Path, connect: Connect
) -> None:
    assert speaks(bound, connect(bound.endpoints[0], key(directory)))
    make(directory, ["gpu8"])
    assert speaks(bound, connect(bound.endpoints[0], key(directory, "gpu8")))


def test_a_client_that_is_taken_away_does_not_get_through_again(
    bound: PushSocket, directory: Path, connect: Connect
) -> None:
    held = key(directory)
    assert speaks(bound, connect(bound.endpoints[0], held))
    (directory / "authorized" / "gpu7.pub").unlink()
    again = connect(bound.endpoints[0], held)
    eventually(lambda: bound.rejected()["key"] >= 1)
    assert not again.poll(0, zmq.POLLOUT)


def test_rubbish_that_is_no_handshake_costs_nothing(bound: PushSocket, directory: Path, connect: Connect) -> None:
    host, _, port = bound.endpoints[0].removeprefix("tcp://").rpartition(":")
    for rubbish in (b"", b"GET / HTTP/1.0\r\n\r\n", os.urandom(4096)):
        with socket.create_connection((host, int(port))) as raw:
            raw.sendall(rubbish)
    assert speaks(bound, connect(bound.endpoints[0], key(directory)))


def test_when_nobody_is_there_to_be_asked_nobody_gets_through(
    bound: PushSocket, directory: Path, connect: Connect
) -> None:
    assert bound._authenticator is not None
    bound._authenticator.stop()
    bound._authenticator = None
    client = connect("inproc://nowhere", key(directory))
    ends = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    with client.get_monitor_socket(ends) as events:
        client.connect(bound.endpoints[0])
        assert events.poll(PATIENCE_MILLISECONDS)
        assert recv_monitor_message(events)["event"] != zmq.EVENT_HANDSHAKE_SUCCEEDED
        client.disable_monitor()


def test_the_thread_is_there_with_keys_only_and_ends_with_the_socket(place: Path, directory: Path) -> None:
    PushSocket([f"ipc://{place}/push.sock", "tcp://127.0.0.1:*"]).close()
    with_keys = PushSocket(["tcp://127.0.0.1:*"], keys=str(directory))
    assert len(authenticators()) == 1
    with_keys.close()
    with_keys.close()
    assert not authenticators()


def test_a_port_that_cannot_be_bound_leaves_no_thread(directory: Path) -> None:
    with pytest.raises(EndpointError, match=r"no such device; name another with --push\.endpoint"):
        PushSocket(["tcp://nosuchdevice:*"], keys=str(directory))
    assert not authenticators()


def test_a_message_has_the_name_of_its_key(bound: PushSocket, directory: Path, connect: Connect) -> None:
    client = connect(bound.endpoints[0], key(directory))
    client.send(b"hello")
    assert bound.socket.poll(PATIENCE_MILLISECONDS)
    assert bound.socket.recv(copy=False).get("User-Id") == "gpu7"
    bound.socket.recv()
