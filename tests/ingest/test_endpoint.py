"""Place and permissions of the push socket, and the messages when it cannot be bound."""

from __future__ import annotations

import grp
import os
import re
import socket
import stat
import subprocess
import sys
import textwrap
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from trackside.environment.discovery import find
from trackside_daemon.ingest.endpoint import EndpointError, SocketLock, default_directory, token_path
from trackside_daemon.ingest.keyring import make
from trackside_daemon.ingest.push_socket import PushSocket

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

UID = os.getuid()


@pytest.fixture
def bind() -> Iterator[Callable[..., PushSocket]]:
    """A function that binds sockets; they are closed when the test ends."""
    bound: list[PushSocket] = []

    def start(*endpoints: str) -> PushSocket:
        bound.append(PushSocket(endpoints))
        return bound[-1]

    yield start
    for one in bound:
        one.close()


@pytest.fixture
def runtime(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This user's runtime directory, empty and first in the search order."""
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


def test_without_an_endpoint_the_socket_lies_where_the_client_searches_first(
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


def test_a_second_daemon_is_refused_with_the_holder_of_the_socket(place: Path, bind: Callable[..., PushSocket]) -> None:
    endpoint = f"ipc://{place}/push.sock"
    bind(endpoint)
    assert refusal(endpoint) == (
        f"{place}/push.sock: another trackside daemon listens there (pid {os.getpid()}); stop it, or give this one another"
        " path with --push.endpoint=ipc:///PATH"
    )
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
        bound.close()
        assert not (place / "push.sock").exists()


def test_the_socket_of_a_killed_daemon_is_bound_anew(place: Path, bind: Callable[..., PushSocket]) -> None:
    script = textwrap.dedent(
        f"""
        import os
        from trackside_daemon.ingest.push_socket import PushSocket
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


def test_the_lock_of_a_dead_daemon_names_no_holder_and_delays_nothing(place: Path) -> None:
    (place / "push.sock.lock").write_text("12345\n")
    lock = SocketLock(place / "push.sock")
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
    ("path", "message"),
    [
        ("missing/push.sock", "push.sock.lock: no such file or directory; make its directory writable for uid"),
        ("file/push.sock", "push.sock.lock: not a directory; make its directory writable for uid"),
        ("file", "/file exists and is not a socket; choose another path with --push.endpoint=ipc:///PATH"),
        ("folder", "/folder exists and is not a socket; choose another path with --push.endpoint=ipc:///PATH"),
        ("x" * 120, "the path must begin with a / and have at most 107 bytes"),
    ],
)
def test_a_path_that_cannot_be_bound_is_explained_and_left_alone(place: Path, path: str, message: str) -> None:
    (place / "file").write_text("precious")
    (place / "folder").mkdir()
    assert message in refusal(f"ipc://{place}/{path}")
    assert (place / "file").read_text() == "precious"
    assert sorted(one.name for one in place.iterdir()) == ["file", "folder"]


@pytest.mark.parametrize("path", ["push.sock", "", "@abstract", "*"])
def test_a_path_that_clients_could_not_find_is_refused(path: str) -> None:
    assert "the path must begin with a /" in refusal(f"ipc://{path}")


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
        *("tcp://127.evil.org:1", "tcp://eth0:*", "tcp://[fe80::1%eth0]:1"),
    ],
)
def test_nothing_is_bound_beyond_this_machine_without_keys(endpoint: str) -> None:
    assert refusal(endpoint) == (
        f"{endpoint}: other machines reach it, so clients need keys: make them with `trackside keys DIR` and start with"
        " --push.keys=DIR"
    )


@pytest.mark.parametrize(
    "endpoint",
    [
        *("tcp://127.0.0.1", "tcp://127.0.0.1:99999", "tcp://127.0.0.1:-1", "tcp://:21791", "udp://127.0.0.1:1", ""),
        *("inproc://x", "/run/push.sock", "127.0.0.1:21791", "tcp://127.0.0.1:1;tcp://0.0.0.0:1", "tcp://a;b:1"),
    ],
)
def test_what_is_no_endpoint_is_refused(endpoint: str) -> None:
    assert refusal(endpoint) == f"{endpoint}: pushes are accepted at ipc:///PATH or tcp://HOST:PORT"


def test_the_directory_of_the_keys_may_be_relative(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(place / "keys", ["gpu7"])
    monkeypatch.chdir(place)
    with closing(PushSocket(["tcp://127.0.0.1:0"], keys="keys")) as push_socket:
        assert push_socket.keys == str(place / "keys")  # the worker that reads them runs in another directory


def test_keys_that_no_client_could_use_are_refused(place: Path) -> None:
    with pytest.raises(EndpointError, match=r"^--push\.keys is for TCP clients, but there is no TCP endpoint"):
        PushSocket([f"ipc://{place}/push.sock"], keys=str(place))
    assert not list(place.iterdir())


@pytest.mark.parametrize("spoil", ["absent", "readable", "malformed"])
def test_keys_that_are_no_use_are_refused_before_a_port_is_bound(place: Path, spoil: str) -> None:
    if spoil != "absent":
        make(place / "keys", ["gpu7"])
        (place / "keys" / "daemon.key").chmod(0o644 if spoil == "readable" else 0o600)
    if spoil == "malformed":
        (place / "keys" / "daemon.key").write_text("")
    with pytest.raises(EndpointError) as caught:
        PushSocket([f"ipc://{place}/push.sock", "tcp://0.0.0.0:*"], keys=f"{place}/keys")
    assert str(caught.value).startswith(f"--push.keys: {place}/keys/daemon.key: ")
    assert not (place / "push.sock").exists()


@pytest.mark.parametrize("endpoint", ["tcp://127.0.0.1:0", "tcp://127.0.0.1:*", "tcp://localhost:0", "tcp://[::1]:0"])
def test_a_loopback_port_is_bound_and_logged(runtime: Path, bind: Callable[..., PushSocket], endpoint: str) -> None:
    (bound,) = bind(endpoint).endpoints
    host, _, port = bound.removeprefix("tcp://").rpartition(":")
    assert int(port) > 0
    socket.create_connection((host.strip("[]"), int(port))).close()


def test_an_occupied_port_is_named(runtime: Path) -> None:
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
    """A search order of only two directories."""
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
        f"no directory for the push socket: {two_places}/trackside (file exists), {two_places}/next (not a directory that only"
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
    with pytest.raises(EndpointError, match="no directory for the push socket"):
        default_directory({}, 4242)


GROUP = 54321 if UID == 0 else os.getgid()
"""One that this user may give files to."""

OWN = grp.getgrgid(os.getgid())


def owner_and_mode(path: Path) -> tuple[int, int]:
    return path.stat().st_gid, mode(path)


@pytest.fixture
def shared(place: Path) -> Path:
    """A directory that the group may enter."""
    os.chown(place, -1, GROUP)
    place.chmod(0o750)
    return place


@pytest.mark.parametrize(("name", "gid"), [(str(GROUP), GROUP), (OWN.gr_name, OWN.gr_gid)], ids=["number", "name"])
def test_a_group_that_is_named_may_write_to_the_socket_and_read_neither_token_nor_lock(
    shared: Path, name: str, gid: int
) -> None:
    os.chown(shared, -1, gid)
    bound = PushSocket([f"ipc://{shared}/push.sock"], group=name)
    assert owner_and_mode(shared / "push.sock") == (gid, 0o660)
    assert mode(shared / "push.sock.lock") == 0o600
    assert owner_and_mode(shared) == (gid, 0o750)
    bound.close()


def test_the_directory_that_the_daemon_chose_is_opened_to_the_group(runtime: Path) -> None:
    bound = PushSocket(group=str(GROUP))
    assert owner_and_mode(runtime / "trackside") == (GROUP, 0o750)
    assert owner_and_mode(runtime / "trackside" / "push.sock") == (GROUP, 0o660)
    bound.close()


@pytest.mark.parametrize(("gid", "bits"), [(GROUP, 0o700), (os.getgid() if UID == 0 else -1, 0o750)])
def test_a_chosen_directory_that_the_group_cannot_enter_is_logged_and_left(place: Path, gid: int, bits: int) -> None:
    os.chown(place, -1, gid)
    place.chmod(bits)
    if UID != 0 and bits == 0o750:
        place.chmod(0o700)
    before = owner_and_mode(place)
    with pytest.raises(EndpointError) as caught:
        PushSocket([f"ipc://{place}/push.sock"], group=str(GROUP))
    name = str(GROUP) if UID == 0 else grp.getgrgid(GROUP).gr_name
    assert str(caught.value) == (
        f"{place}: group {name} cannot enter it to reach the push socket; run: chgrp {name} {place} && chmod 750 {place}"
    )
    assert owner_and_mode(place) == before
    assert not (place / "push.sock").exists()


@pytest.mark.parametrize("group", ["nobody-has-this", "-1", "1.5", " "])
def test_a_group_that_does_not_exist_is_reported(shared: Path, group: str) -> None:
    with pytest.raises(
        EndpointError, match=f"^--push.group: there is no group {group}; make it with: groupadd --system"
    ):
        PushSocket([f"ipc://{shared}/push.sock"], group=group)
    assert not (shared / "push.sock").exists()


def test_a_number_that_can_be_no_group_is_reported(place: Path) -> None:
    place.chmod(0o755)
    with pytest.raises(EndpointError, match="cannot give it to group 99999999999: not a member of it"):
        PushSocket([f"ipc://{place}/push.sock"], group="99999999999")


@pytest.fixture
def system(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that counts as the system's, on a machine whose group trackside is this user's."""
    monkeypatch.setattr("trackside_daemon.ingest.endpoint.SYSTEM_SOCKET_DIRECTORY", place)
    monkeypatch.setattr("trackside_daemon.ingest.endpoint.directories", lambda *_: iter([place]))
    monkeypatch.setattr(grp, "getgrnam", {"trackside": OWN}.__getitem__)
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(place))
    return place


@pytest.mark.parametrize("named", [False, True])
def test_in_the_systems_directory_the_group_trackside_pushes_without_being_named(system: Path, named: bool) -> None:
    if named:
        system.chmod(0o750)
    bound = PushSocket([f"ipc://{system}/push.sock"] if named else [])
    assert owner_and_mode(system) == (os.getgid(), 0o750)
    assert owner_and_mode(system / "push.sock") == (os.getgid(), 0o660)
    bound.close()


def test_a_system_without_the_group_is_advised_to_make_it(system: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grp, "getgrnam", {}.__getitem__)
    with pytest.raises(EndpointError) as caught:
        PushSocket()
    assert str(caught.value) == (
        f"{system}/push.sock: there is no group trackside; make it with: groupadd --system trackside, or name"
        " another with --push.group"
    )


NOT_A_MEMBER = """
import os, sys
if os.getuid() == 0:
    os.setgroups([]); os.setgid(12345); os.setuid(12345)
from trackside_daemon.ingest.endpoint import EndpointError, grant
from pathlib import Path
try:
    grant(Path(sys.argv[1]), 1)
except EndpointError as error:
    print(error)
"""


def test_a_user_outside_the_group_gets_an_error_that_names_it(place: Path) -> None:
    code = NOT_A_MEMBER.replace("import os, sys", "import os, sys, trackside_daemon.ingest.endpoint", 1)
    uid = 12345 if UID == 0 else UID
    os.chown(place, uid, -1)
    reported = subprocess.run([sys.executable, "-c", code, str(place)], capture_output=True, text=True, check=True)
    name = grp.getgrgid(1).gr_name
    assert reported.stdout == (
        f"{place}: uid {uid} cannot give it to group {name}: not a member of it; add this user with: usermod --append"
        f" --groups {name} USER, or name another group with --push.group\n"
    )
    os.chown(place, UID, -1)
