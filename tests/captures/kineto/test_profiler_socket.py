"""The socket that PyTorch asks: which processes it answers, which it refuses, and which files stay."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from captures.kineto.datagrams import Client, counts, datagram, registration, request
from fuzz.mutation import mutants
from processes import eventually

from trackside.captures.kineto import SOCKET
from trackside_daemon.captures.kineto.profiler_socket import ProfilerSocket
from trackside_daemon.captures.kineto.protocol import DATAGRAM_BYTES, DatagramError, decode
from trackside_daemon.captures.kineto.socket_file import DirectoryError, remove_after, remove_stale

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trackside_daemon.captures.kineto.profiler_socket import Pollers

STRANGER = 54321
SEEDS = (request(), request(os.getpid()), registration(os.getpid()), datagram(b"req", b"\xff" * 40), b"")

# Sends what it reads on standard input, each datagram after its length, as another user.
SEND = f"""
import os, socket, sys
os.setresuid(*[{STRANGER}] * 3)
out = socket.socket(fileno=int(sys.argv[1]))
while size := sys.stdin.buffer.read(4):
    out.send(sys.stdin.buffer.read(int.from_bytes(size, "little")))
"""


def test_a_configuration_reaches_the_process_it_waits_for_once(
    profiler: Path, pollers: Pollers, served: ProfilerSocket
) -> None:
    with closing(Client(profiler)) as client:
        client.ask()
        pollers.offer(os.getpid(), "A=1\n")
        client.ask(accepts=False)
        client.ask()
        client.ask()
        assert client.answer() == "A=1\n"
        pollers.offer(os.getpid(), "A=2\n")
        client.ask()
        # No datagram without content came between them: a late one would delay all later ones.
        assert client.answer() == "A=2\n"
    assert not counts(served.samples())


def test_an_unknown_connection_is_refused_and_disturbs_no_other(
    profiler: Path, pollers: Pollers, served: ProfilerSocket, count: Callable[[int, int], int]
) -> None:
    if os.getuid() != 0:
        pytest.skip("sends as another user, which root alone can")
    number = count(500, 50_000)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as connected:
        connected.connect(str(profiler / SOCKET))  # the directory is closed to the stranger
        command = [sys.executable, "-I", "-S", "-c", SEND, str(connected.fileno())]
        with subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=(connected.fileno(),)) as sender:
            assert sender.stdin is not None
            for one in mutants(SEEDS, number - len(SEEDS)):
                sender.stdin.write(len(one[:DATAGRAM_BYTES]).to_bytes(4, "little") + one[:DATAGRAM_BYTES])
            sender.stdin.close()
            with closing(Client(profiler)) as client:
                pollers.offer(os.getpid(), "A=1\n")
                client.ask()
                assert client.answer() == "A=1\n"
            assert sender.wait() == 0
    eventually(lambda: counts(served.samples()).get("user", 0) == number)
    assert counts(served.samples()) == {"user": number}


def test_random_datagrams_are_refused_and_nothing_is_lost(
    profiler: Path, pollers: Pollers, served: ProfilerSocket, count: Callable[[int, int], int]
) -> None:
    expected = {"format": 0, "process": 0}
    with closing(Client(profiler)) as client:
        for number, one in enumerate(mutants(SEEDS, count(500, 50_000))):
            client.send(one)
            try:
                found = decode(one[:DATAGRAM_BYTES])
            except DatagramError:
                expected["format"] += 1
            else:
                expected["process"] += found is not None and found.pid != os.getpid()
            if number % 100 == 0:
                pollers.offer(os.getpid(), f"A={number}\n")
                client.ask()
                assert client.answer() == f"A={number}\n"
    eventually(lambda: sum(counts(served.samples()).values()) == sum(expected.values()))
    assert counts(served.samples()) == {reason: number for reason, number in expected.items() if number}


def test_a_process_speaks_for_itself_alone(profiler: Path, pollers: Pollers, served: ProfilerSocket) -> None:
    pollers.offer(os.getppid(), "A=1\n")
    with closing(Client(profiler)) as client:
        client.ask(os.getppid())
        eventually(lambda: counts(served.samples()) == {"process": 1})
    assert pollers.get(os.getppid()) is None


@pytest.mark.parametrize("name", ["", "\0trackside-test"])
def test_another_directory_is_not_answered(
    name: str, place: Path, profiler: Path, pollers: Pollers, served: ProfilerSocket
) -> None:
    # libkineto ends its process when an answer comes from elsewhere than the directory that it knows.
    with closing(Client(profiler, (name and f"{name}{os.getpid()}") or str(place / "dynoconfigclient"))) as client:
        client.ask()
        eventually(lambda: counts(served.samples()) == {"address": 1})


def test_the_file_goes_with_the_socket_and_the_next_daemon_clears_up(profiler: Path, pollers: Pollers) -> None:
    for _ in range(2):
        ProfilerSocket(profiler, pollers).stop()
        assert not (profiler / SOCKET).exists()
    killed, alive = Client(profiler), Client(profiler)
    killed.close()
    (profiler / "0123456789ab").symlink_to(profiler)
    with closing(alive):
        ProfilerSocket(profiler, pollers).stop()
        assert sorted(path.name[:16] for path in profiler.iterdir()) == ["dynoconfigclient", "kineto.conf"]


def test_the_file_of_a_killed_daemon_is_removed_and_that_of_a_living_one_stays(place: Path) -> None:
    path = place / SOCKET
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as living:
        living.bind(str(path))
        remove_stale(path)
        assert path.exists()
    remove_after(path, 60.0)
    assert not path.exists()
    remove_after(path, 60.0)


@pytest.mark.parametrize("name", ["x" * 60, "a b", "a#b", "a.json", "a..b"])
def test_a_directory_that_libkineto_cannot_use_is_refused(name: str, place: Path, pollers: Pollers) -> None:
    with pytest.raises(DirectoryError, match="libkineto allows"):
        ProfilerSocket(place / f"{name}.kineto", pollers)


def test_a_directory_that_others_can_enter_is_refused(profiler: Path, pollers: Pollers) -> None:
    profiler.mkdir(mode=0o755)
    with pytest.raises(DirectoryError, match="mode 0700; remove it"):
        ProfilerSocket(profiler, pollers)
