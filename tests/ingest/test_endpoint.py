"""Where the push socket lies, who may have it, and what is said when it cannot be had."""

from __future__ import annotations

import os
import re
import socket
import stat
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from trackside.discovery import find
from trackside_daemon.ingest.endpoint import EndpointError, Lock, default_directory, token_path
from trackside_daemon.ingest.server import PushSocket

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

UID = os.getuid()


@pytest.fixture
def bind() -> Iterator[Callable[..., PushSocket]]:
    """Binds sockets, and closes them when the test ends."""
    bound: list[PushSocket] = []

    def start(*endpoints: str) -> PushSocket:
        bound.append(PushSocket(endpoints))
        return bound[-1]

    yield start
    for one in bound:
        one.close()


@pytest.fixture
def runtime(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This user's runtime directory, the first that is looked in; nothing is in it."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(place))
    monkeypatch.delenv("RUNTIME_DIRECTORY", raising=False)
    return place


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def refusal(endpoint: str) -> str:
    with pytest.raises(EndpointError) as caught:
        PushSocket([endpoint])
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_without_an_endpoint_it_lies_where_the_client_looks_first(
    runtime: Path, bind: Callable[..., PushSocket]
) -> None:
    bound = bind()
    assert bound.token.parent == runtime / "trackside"
    assert bound.endpoints == (f"ipc://{runtime}/trackside/push.sock",)
    assert find(None, os.environ)[0] == bound.endpoints[0]


def test_socket_and_directory_are_this_users_alone(runtime: Path, bind: Callable[..., PushSocket]) -> None:
    before = os.umask(0)
    try:
        bound = bind()
        assert os.umask(0) == 0, "the umask is as it was"
    finally:
        os.umask(before)
    assert mode(bound.token.parent) == 0o700
    assert mode(bound.token.parent / "push.sock") == 0o600
    assert mode(bound.token.parent / "push.sock.lock") == 0o600


def test_a_second_daemon_is_told_who_has_the_socket(place: Path, bind: Callable[..., PushSocket]) -> None:
    endpoint = f"ipc://{place}/push.sock"
    bind(endpoint)
    assert refusal(endpoint) == (
        f"{place}/push.sock: another trackside daemon listens there (pid {os.getpid()}); stop it, or give this one a"
        " place of its own with --push.endpoint=ipc:///PATH"
    )


def test_the_first_daemons_socket_survives_the_second_ones_attempt(
    place: Path, bind: Callable[..., PushSocket]
) -> None:
    endpoint = f"ipc://{place}/push.sock"
    bind(endpoint)
    refusal(endpoint)
    with socket.socket(socket.AF_UNIX) as probe:
        probe.connect(f"{place}/push.sock")


def test_the_socket_is_gone_when_it_is_closed_and_may_be_bound_again(
    place: Path, bind: Callable[..., PushSocket]
) -> None:
    endpoint = f"ipc://{place}/push.sock"
    for _ in range(2):
        bound = bind(endpoint)
        assert (place / "push.sock").is_socket()
        bound.close()
        assert not (place / "push.sock").exists()


def test_closing_twice_does_no_harm(place: Path, bind: Callable[..., PushSocket]) -> None:
    bound = bind(f"ipc://{place}/push.sock")
    bound.close()
    bound.close()


def test_the_socket_of_a_daemon_that_was_killed_is_taken_over(place: Path, bind: Callable[..., PushSocket]) -> None:
    script = textwrap.dedent(
        f"""
        import os
        from trackside_daemon.ingest.server import PushSocket
        bound = PushSocket(["ipc://{place}/push.sock"])
        os.kill(os.getpid(), 9)
        """
    )
    killed = subprocess.run([sys.executable, "-c", script], check=False)
    assert killed.returncode == -9
    assert (place / "push.sock").is_socket()
    bind(f"ipc://{place}/push.sock")
    with socket.socket(socket.AF_UNIX) as probe:
        probe.connect(f"{place}/push.sock")


def test_the_lock_of_a_dead_daemon_names_nobody_and_holds_nobody_up(place: Path) -> None:
    (place / "push.sock.lock").write_text("12345\n")
    lock = Lock(place / "push.sock")
    assert (place / "push.sock.lock").read_text() == f"{os.getpid()}\n"
    lock.release()


def test_several_endpoints_are_all_bound_or_none(place: Path, bind: Callable[..., PushSocket]) -> None:
    first, second = f"ipc://{place}/a.sock", f"ipc://{place}/b.sock"
    held = bind(second)
    with pytest.raises(EndpointError, match=r"b\.sock: another trackside daemon"):
        PushSocket([first, second])
    assert not (place / "a.sock").exists()
    held.close()
    assert bind(first, second).endpoints == (first, second)


def test_the_same_endpoint_twice_is_refused(place: Path) -> None:
    with pytest.raises(EndpointError, match="another trackside daemon listens there"):
        PushSocket([f"ipc://{place}/push.sock"] * 2)


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("missing/push.sock", "push.sock.lock: no such file or directory; make its directory writable for uid"),
        ("file/push.sock", "push.sock.lock: not a directory; make its directory writable for uid"),
        ("file", "/file is there and is no socket; name another place with --push.endpoint=ipc:///PATH"),
        ("folder", "/folder is there and is no socket; name another place with --push.endpoint=ipc:///PATH"),
        ("x" * 120, "the path has to begin with a / and to be of at most 107 bytes"),
    ],
)
def test_a_path_that_cannot_be_bound_is_explained_and_left_alone(place: Path, path: str, says: str) -> None:
    (place / "file").write_text("precious")
    (place / "folder").mkdir()
    assert says in refusal(f"ipc://{place}/{path}")
    assert (place / "file").read_text() == "precious"
    assert sorted(one.name for one in place.iterdir()) == ["file", "folder"]


@pytest.mark.parametrize("path", ["push.sock", "", "@abstract", "*"])
def test_a_path_that_clients_could_not_find_is_refused(path: str) -> None:
    assert "the path has to begin with a /" in refusal(f"ipc://{path}")


@pytest.mark.parametrize(
    "endpoint",
    [
        *(
            "tcp://0.0.0.0:21791",
            "tcp://*:21791",
            "tcp://10.0.0.1:21791",
            "tcp://example.org:21791",
            "tcp://[::]:21791",
        ),
        *("tcp://127.evil.org:1", "tcp://127.0.0.1", "tcp://127.0.0.1:99999", "tcp://127.0.0.1:-1", "tcp://:21791"),
        *(
            "udp://127.0.0.1:1",
            "inproc://x",
            "/run/push.sock",
            "127.0.0.1:21791",
            "",
            "tcp://127.0.0.1:1;tcp://0.0.0.0:1",
        ),
    ],
)
def test_nothing_is_bound_beyond_this_machine(endpoint: str) -> None:
    assert refusal(endpoint) == f"{endpoint}: pushes are taken at ipc:///PATH or tcp://127.0.0.1:PORT"


@pytest.mark.parametrize("endpoint", ["tcp://127.0.0.1:0", "tcp://127.0.0.1:*", "tcp://localhost:0", "tcp://[::1]:0"])
def test_a_loopback_port_is_bound_and_told(runtime: Path, bind: Callable[..., PushSocket], endpoint: str) -> None:
    (bound,) = bind(endpoint).endpoints
    host, _, port = bound.removeprefix("tcp://").rpartition(":")
    assert int(port) > 0
    socket.create_connection((host.strip("[]"), int(port))).close()


def test_a_port_that_is_taken_is_named(runtime: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        endpoint = f"tcp://127.0.0.1:{other.getsockname()[1]}"
        assert refusal(endpoint) == f"{endpoint}: address already in use; name another with --push.endpoint"


def test_with_a_port_alone_the_token_lies_in_the_default_directory(
    runtime: Path, bind: Callable[..., PushSocket]
) -> None:
    token = bind("tcp://127.0.0.1:0").token
    assert token.parent == runtime / "trackside"
    assert re.fullmatch(r"push-\d+\.token", token.name)


def test_the_token_lies_beside_the_first_socket_that_is_a_file(place: Path) -> None:
    endpoints = ["tcp://127.0.0.1:1", f"ipc://{place}/a.sock", "ipc:///elsewhere/b.sock"]
    assert token_path(endpoints, {}, UID) == place / "a.token"


def test_a_directory_that_is_there_already_is_used(place: Path) -> None:
    (place / "trackside").mkdir(0o755)
    assert default_directory({"XDG_RUNTIME_DIR": str(place)}, UID) == place / "trackside"
    assert mode(place / "trackside") == 0o755


@pytest.fixture
def two_places(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Only two directories are looked in."""
    monkeypatch.setattr(
        "trackside_daemon.ingest.endpoint.directories", lambda *_: iter([place / "trackside", place / "next"])
    )
    return place


@pytest.mark.parametrize(
    "spoil", ["writable by the group", "writable by all", "another's", "a file", "a link", "no parent"]
)
def test_a_directory_that_others_could_write_is_passed_over(two_places: Path, spoil: str) -> None:
    directory = two_places / "trackside"
    if spoil.startswith("writable"):
        directory.mkdir()
        directory.chmod(0o770 if "group" in spoil else 0o707)
    elif spoil == "another's":
        directory.mkdir(0o700)
        os.chown(directory, 12345, 12345)
    elif spoil == "a file":
        directory.write_text("")
    elif spoil == "a link":
        (two_places / "target").mkdir(0o700)
        directory.symlink_to(two_places / "target")
    expected = two_places / "next" if spoil != "no parent" else directory
    assert default_directory({}, UID) == expected


def test_when_no_directory_is_any_use_each_is_named_with_its_reason(two_places: Path) -> None:
    (two_places / "trackside").write_text("")
    (two_places / "next").mkdir(0o700)
    (two_places / "next").chmod(0o777)
    with pytest.raises(EndpointError) as caught:
        default_directory({}, UID)
    assert str(caught.value) == (
        f"no place for the push socket: {two_places}/trackside (file exists), {two_places}/next (not a directory that only"
        f" uid {UID} may write); name one with --push.endpoint=ipc:///PATH/push.sock"
    )


@pytest.mark.parametrize("variable", ["/run/trackside", "/run/other:/run/trackside"])
def test_a_service_manager_names_the_systems_directory(place: Path, variable: str) -> None:
    environ = {"RUNTIME_DIRECTORY": variable, "XDG_RUNTIME_DIR": str(place)}
    assert default_directory(environ, UID) == Path("/run/trackside")


def test_a_service_of_another_name_does_not(place: Path) -> None:
    environ = {"RUNTIME_DIRECTORY": "/run/other", "XDG_RUNTIME_DIR": str(place)}
    assert default_directory(environ, UID) == place / "trackside"


def test_the_systems_directory_is_not_made_by_a_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trackside_daemon.ingest.endpoint.directories", lambda *_: iter([Path("/run/trackside")]))
    with pytest.raises(EndpointError, match="no place for the push socket"):
        default_directory({}, 4242)
