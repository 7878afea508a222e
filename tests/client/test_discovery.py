"""Discovery of the push socket: its places, their order, and the ones that are not trusted."""

from __future__ import annotations

import grp
import os
import socket
import subprocess
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from processes import clean_environ

from trackside.environment import discovery

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

UID = os.getuid()


@pytest.fixture
def listen() -> Iterator[Callable[[Path], Path]]:
    """A function that makes a ``push.sock`` in a new directory, with a listener by default."""
    with ExitStack() as open_sockets:

        def make(directory: Path, *, listening: bool = True) -> Path:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            one = open_sockets.enter_context(socket.socket(socket.AF_UNIX))
            one.bind(str(directory / discovery.SOCKET))
            if listening:
                one.listen(1)
            return directory / discovery.SOCKET

        yield make


@pytest.fixture
def places(place: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Two directories for the search, instead of those of this machine; the second is the system's."""
    found = [place / "user", place / "system"]
    monkeypatch.setattr(discovery, "directories", lambda *_: found)
    monkeypatch.setattr(discovery, "SYSTEM_SOCKET_DIRECTORY", found[1])
    return found


def test_the_users_own_directories_come_before_the_systems_and_the_temporary_one_never_comes() -> None:
    environ = {"XDG_RUNTIME_DIR": "/somewhere/else", "TMPDIR": "/scratch"}
    assert list(map(str, discovery.directories(environ, 1000))) == [
        "/somewhere/else/trackside",
        "/run/user/1000/trackside",
        "/tmp/trackside-1000",
        "/run/trackside",
    ]
    assert list(map(str, discovery.directories({"XDG_RUNTIME_DIR": ""}, 0))) == [
        "/run/user/0/trackside",
        "/tmp/trackside-0",
        "/run/trackside",
    ]


def test_a_runtime_directory_that_can_be_used_is_the_only_one_of_the_user(tmp_path: Path) -> None:
    directories = list(map(str, discovery.directories({"XDG_RUNTIME_DIR": str(tmp_path)}, 1000)))
    assert directories == [f"{tmp_path}/trackside", "/run/trackside"]


@pytest.mark.parametrize(
    ("endpoint", "explicit", "environ", "reason"),
    [
        ("ipc:///a/push.sock", "ipc:///a/push.sock", {}, "named by the program"),
        ("tcp://a:1", None, {"TRACKSIDE_ENDPOINT": "tcp://a:1"}, "named by $TRACKSIDE_ENDPOINT"),
        ("ipc:///run/trackside/push.sock", None, {"XDG_RUNTIME_DIR": "/a"}, "the system's daemon; this user has none"),
        ("ipc:///a/trackside/push.sock", None, {"XDG_RUNTIME_DIR": "/a"}, "in $XDG_RUNTIME_DIR"),
        ("ipc:///tmp/trackside-1/push.sock", None, {}, "this user's daemon; no $XDG_RUNTIME_DIR keeps it apart"),
    ],
)
def test_a_daemon_is_shown_with_the_reason_for_its_choice(
    endpoint: str, explicit: str | None, environ: dict[str, str], reason: str
) -> None:
    assert discovery.origin(endpoint, explicit, environ) == reason


def test_each_place_is_tried_once(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    monkeypatch.setattr(discovery, "directories", lambda *_: [place, place])
    assert discovery.find(None, {}) == (None, [f"{place}/push.sock (not found)"])


def test_the_first_socket_with_a_listener_is_used(places: list[Path], listen: Callable[[Path], Path]) -> None:
    assert discovery.find(None, {}) == (None, [f"{one}/push.sock (not found)" for one in places])
    system = listen(places[1])
    assert discovery.find(None, {}) == (f"ipc://{system}", [f"{places[0]}/push.sock (not found)"])
    user = listen(places[0])
    assert discovery.find(None, {}) == (f"ipc://{user}", [])


def test_a_named_endpoint_goes_before_the_environment_and_that_before_all_places(
    place: Path, places: list[Path], listen: Callable[[Path], Path]
) -> None:
    listen(places[0])
    named, other = (f"ipc://{listen(place / name)}" for name in ("named", "other"))
    assert discovery.find(named, {"TRACKSIDE_ENDPOINT": other}) == (named, [])
    assert discovery.find(None, {"TRACKSIDE_ENDPOINT": other}) == (other, [])
    assert discovery.find("tcp://127.0.0.1:21791", {}) == ("tcp://127.0.0.1:21791", [])
    assert discovery.find(None, {"TRACKSIDE_ENDPOINT": ""})[0] == f"ipc://{places[0]}/push.sock"


def test_what_is_named_and_no_use_is_not_replaced_by_another_place(
    place: Path, places: list[Path], listen: Callable[[Path], Path]
) -> None:
    listen(places[0])
    named = f"ipc://{place}/absent.sock"
    for explicit, environ in ((named, {}), (None, {"TRACKSIDE_ENDPOINT": named})):
        assert discovery.find(explicit, environ) == (None, [f"{named} (not found)"])


@pytest.mark.parametrize(
    "endpoint",
    [
        "/run/trackside/push.sock",
        "udp://127.0.0.1:1",
        "push.sock",
        "ipc:/x",
        "://",
        "tcp://gpu7",
        "tcp://:1",
        "tcp://gpu7:x",
    ],
)
def test_an_invalid_endpoint_is_reported(endpoint: str) -> None:
    assert discovery.find(endpoint, {}) == (None, [f"{endpoint} (neither ipc://PATH nor tcp://HOST:PORT)"])


@pytest.mark.parametrize("path", ["nul\0", "x" * 300, "/" * 5000])
def test_a_path_that_cannot_be_is_no_error(path: str) -> None:
    found, failures = discovery.find(f"ipc:///tmp/{path}", {})
    assert found is None
    assert len(failures) == 1


def test_a_file_or_a_directory_is_no_socket(places: list[Path]) -> None:
    for directory in places:
        directory.mkdir(mode=0o700)
    (places[0] / "push.sock").touch()
    (places[1] / "push.sock").mkdir()
    assert discovery.find(None, {}) == (None, [f"{one}/push.sock (not a socket)" for one in places])


def test_a_socket_that_a_killed_daemon_left_is_passed_over(places: list[Path], listen: Callable[..., Path]) -> None:
    left = listen(places[0], listening=False)
    system = listen(places[1])
    assert discovery.find(None, {}) == (f"ipc://{system}", [f"{left} (nobody listens there)"])


def test_a_daemon_too_busy_to_accept_one_more_is_a_daemon(places: list[Path], listen: Callable[[Path], Path]) -> None:
    path = listen(places[0])
    with ExitStack() as waiting:
        for _ in range(3):
            one = waiting.enter_context(socket.socket(socket.AF_UNIX))
            one.setblocking(False)
            one.connect_ex(str(path))
        assert discovery.find(None, {}) == (f"ipc://{path}", [])


def test_another_users_socket_is_not_trusted_but_for_the_systems(
    places: list[Path], listen: Callable[[Path], Path]
) -> None:
    user, system = listen(places[0]), listen(places[1])
    assert discovery.find(None, {}, uid=UID + 1) == (
        f"ipc://{system}",
        [f"{user} (belongs to another user, uid {UID})"],
    )


@pytest.mark.skipif(UID != 0, reason="only root can give files away")
@pytest.mark.parametrize("foreign", ["push.sock", "."])
def test_both_socket_and_directory_must_be_the_users_own(
    places: list[Path], listen: Callable[[Path], Path], foreign: str
) -> None:
    listen(places[0])
    os.chown(places[0] / foreign, 12345, -1)
    found, failures = discovery.find(None, {})
    assert found is None
    assert failures[0].startswith(f"{places[0]}/push.sock (belongs to another user, uid ")


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o1777])
def test_a_directory_where_others_may_write_is_not_trusted(
    places: list[Path], listen: Callable[[Path], Path], mode: int
) -> None:
    user = listen(places[0])
    places[0].chmod(mode)
    assert discovery.find(None, {})[1][0] == f"{user} (others may write to its directory)"


def test_another_machine_is_not_reached_without_a_key() -> None:
    found, (failure,) = discovery.find("tcp://gpu7:21791", {})
    assert found is None
    assert failure == (
        "tcp://gpu7:21791 (pushing to another machine needs a key: create one with `trackside keys` on the daemon's"
        " machine, copy its file here, and name it in $TRACKSIDE_KEY_FILE)"
    )


def test_a_useless_key_file_is_reported_and_no_daemon_is_reached_without_a_key(place: Path) -> None:
    for endpoint in ("tcp://gpu7:21791", "tcp://127.0.0.1:21791"):
        found = discovery.find(endpoint, {"TRACKSIDE_KEY_FILE": f"{place}/own.key"})
        assert found == (None, [f"{endpoint} ({place}/own.key: no such file or directory)"])


UNPRIVILEGED = """
import os, sys
from trackside.environment import discovery
if os.getuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
print(discovery.find(sys.argv[1], {}))
"""


@pytest.mark.parametrize("forbidden", [".", "push.sock"])
@pytest.mark.parametrize(
    ("group", "mode", "reason"),
    [
        (54321, 0o700, ""),
        (54321, 0o770, ": join the group 54321"),
        (1, 0o770, f": join the group {grp.getgrgid(1).gr_name}"),
    ],
)
def test_a_socket_without_permission_is_reported_with_the_group_that_may_use_it(
    place: Path, listen: Callable[[Path], Path], *, forbidden: str, group: int, mode: int, reason: str
) -> None:
    place.chmod(0o755)
    directory = place / "own"
    path = listen(directory)
    directory.chmod(0o755)
    if UID == 0:
        os.chown(directory / forbidden, 0, group)
    (directory / forbidden).chmod(mode if UID == 0 else 0o000)
    endpoint = f"ipc://{path}"
    checked = subprocess.run(
        [sys.executable, "-c", UNPRIVILEGED, endpoint], env=clean_environ(), capture_output=True, text=True, check=True
    )
    directory.chmod(0o700)
    expected = f"permission denied{reason if UID == 0 else ''}"
    assert checked.stdout.strip() == str((None, [f"{endpoint} ({expected})"]))
