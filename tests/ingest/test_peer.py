"""Process at the other end of a connection, and its exit: real processes over real sockets."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import zmq
from fork_server import ForkedProcess
from msgspec.structs import replace
from processes import DEADLINE, clean_environ, eventually
from wire_messages import PATIENCE_MILLISECONDS, moment

from trackside.wire import Hello, decode_body, open_envelope
from trackside_daemon.ingest.connection import Connection, is_process
from trackside_daemon.ingest.ingest_thread import PATIENCE_SECONDS, EndedProcess, ProcessWatch
from trackside_daemon.ingest.worker import connections
from trackside_daemon.linux import process_exit
from trackside_daemon.linux.oom import OomKills
from trackside_daemon.model.session import Process
from trackside_daemon.training.end_state import Exit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from served_sockets import ServedSocket

    from trackside.wire import Identity
    from trackside_daemon.linux.oom import OomWatch

UNUSED_UID = 65534
CLIENT = """
import os, signal, sys
from wire_messages import Client, FakeSession
client, who = Client(sys.argv[1]), FakeSession()
client.send(*who.frames("hello", who.hello()))
exec(sys.stdin.readline())
"""


class Caller:
    """A process that sends a hello and ends on demand.

    Attributes:
        identity: The identity in its hello.
        connection: Its connection.
    """

    def __init__(self, served: ServedSocket, *prefix: str) -> None:
        (endpoint,) = served.endpoints
        environ = clean_environ({"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)})
        command = [sys.executable, "-c", CLIENT, endpoint]
        pipe = subprocess.PIPE
        if prefix:
            self.process = subprocess.Popen([*prefix, *command], stdin=pipe, text=True, env=environ)
        else:
            self.process = ForkedProcess(command, (("wire_messages",),), stdin=pipe, text=True, env=environ)
        self.connection, frames = served.receive()
        hello = decode_body(open_envelope(frames).kind, frames[2])
        assert isinstance(hello, Hello)
        self.identity = hello.identity

    def end(self, how: str, *, reap: bool = True) -> None:
        """Make it end, and wait until it has; without *reap* it stays as a zombie."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{how}\n")
        self.process.stdin.flush()
        if reap:
            self.process.wait(DEADLINE)
        else:
            os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdin is not None
        self.process.stdin.close()


@pytest.fixture
def call(served: ServedSocket) -> Iterator[Callable[..., Caller]]:
    callers: list[Caller] = []

    def start(*prefix: str) -> Caller:
        callers.append(Caller(served, *prefix))
        return callers[-1]

    yield start
    for one in callers:
        one.close()


@pytest.fixture
def watch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[ProcessWatch]:
    """A watch, in a process that may open as many files as the parameter says."""
    if limit := getattr(request, "param", 0):
        monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    one = ProcessWatch()
    yield one
    one.close()


def meet(watch: ProcessWatch, caller: Caller, identity: Identity | None = None) -> int | None:
    return watch.follow(caller.connection, identity or caller.identity, moment())


def ended(watch: ProcessWatch, after: float = 0.0) -> list[EndedProcess]:
    return eventually(lambda: watch.ended(moment(after)))


def process(caller: Caller, pid: int | None = None) -> Process:
    return Process(pid or caller.identity.pid, caller.identity.start, caller.identity.boot)


def descriptors(kind: str = "") -> int:
    """Return the number of open file descriptors of a kind."""
    links = []
    for one in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the one that reads the directory
            links.append(str(one.readlink()))
    return sum(kind in link for link in links)


def nested() -> list[str]:
    """Return a command that runs another in a new pid namespace."""
    command = ["unshare", "--pid", "--fork", "--kill-child"]
    command += [] if os.getuid() == 0 else ["--user", "--map-root-user"]
    if (
        shutil.which("unshare") is None
        or subprocess.run([*command, "true"], capture_output=True, check=False).returncode
    ):
        pytest.skip("this machine makes no pid namespaces")
    return command


def test_the_process_at_the_other_end_is_found(call: Callable[..., Caller]) -> None:
    caller = call()
    peer = caller.connection.peer
    assert peer is not None
    assert (peer.pid, caller.connection.uid) == (caller.process.pid, os.getuid())
    assert is_process(Path("/proc"), peer.pid, caller.identity)


@pytest.mark.parametrize(("what", "by"), [("start", 1), ("start", -1), ("pid", 1)])
def test_a_process_that_differs_from_its_hello_is_refused(
    call: Callable[..., Caller], watch: ProcessWatch, what: str, by: int
) -> None:
    caller = call()
    assert meet(watch, caller, replace(caller.identity, **{what: getattr(caller.identity, what) + by})) is None


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """A connection of this process with itself."""
    with ExitStack() as stack:
        pair = socket.socketpair()
        yield stack.enter_context(pair[0]), stack.enter_context(pair[1])


def test_without_pidfds_of_peers_its_pid_will_do(
    ends: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    class OlderSocket(socket.socket):
        def getsockopt(self, level: int, option: int, *size: int) -> Any:
            if option != socket.SO_PEERCRED:
                raise OSError(errno.ENOPROTOOPT, "Protocol not available")
            return super().getsockopt(level, option, *size)

    monkeypatch.setattr(socket, "socket", OlderSocket)
    descriptor = connections.pidfd(ends[0].fileno(), os.getpid())
    assert f"Pid:\t{os.getpid()}\n" in Path(f"/proc/self/fdinfo/{descriptor}").read_text()
    os.close(descriptor)


def test_a_descriptor_that_is_another_connections_by_now_is_refused(ends: tuple[socket.socket, socket.socket]) -> None:
    before = descriptors()
    assert connections.pidfd(ends[0].fileno(), os.getppid()) == -1
    with Path("/dev/null").open() as file:
        assert connections.pidfd(file.fileno(), os.getpid()) == -1
    assert connections.pidfd(9999, os.getpid()) == -1
    assert connections.pidfd(-1, os.getpid()) == -1
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as other:
        assert connections.pidfd(other.fileno(), os.getpid()) == -1
    assert descriptors() == before, "nothing is left open"


@pytest.mark.parametrize(
    ("how", "code"),
    [
        ("os._exit(0)", 0),
        ("os._exit(3)", 3),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("os.kill(os.getpid(), signal.SIGSEGV)", -signal.SIGSEGV),
    ],
)
@pytest.mark.parametrize("reap", [True, False], ids=["reaped", "zombie"])
def test_its_end_and_how_it_came_are_reported(
    call: Callable[..., Caller], watch: ProcessWatch, how: str, code: int, *, reap: bool
) -> None:
    caller = call()
    assert meet(watch, caller) == caller.process.pid
    assert watch.ended(moment()) == []
    caller.end(how, reap=reap)
    assert ended(watch, 5.0) == [EndedProcess(process(caller), Exit(code), moment(5.0))]
    assert not watch.waits
    assert descriptors("pidfd") == 0, "nothing of it is left open"


def test_in_another_pid_namespace_it_is_seen_as_this_machine_counts(
    call: Callable[..., Caller], watch: ProcessWatch
) -> None:
    caller = call(*nested())
    pid = meet(watch, caller)
    assert caller.identity.pid == 1
    assert pid not in (None, 1)
    caller.end("os._exit(3)")
    assert ended(watch) == [EndedProcess(process(caller, pid), Exit(3), moment())]


def test_a_process_with_several_sessions_is_followed_once(call: Callable[..., Caller], watch: ProcessWatch) -> None:
    caller = call()
    first = meet(watch, caller)
    assert descriptors("pidfd") == 1
    assert {meet(watch, caller) for _ in range(10)} == {first}
    assert descriptors("pidfd") == 1
    caller.end("os._exit(0)")
    assert len(ended(watch)) == 1
    assert descriptors("pidfd") == 0, "nothing of it is left open"


def test_a_connection_without_a_process_is_not_followed(call: Callable[..., Caller], watch: ProcessWatch) -> None:
    caller = call()
    assert watch.follow(Connection(b"tcp"), caller.identity, moment()) is None
    assert caller.connection.peer is not None
    caller.connection.peer.close()
    assert meet(watch, caller) is None


@pytest.mark.parametrize("watch", [4], indirect=True)
def test_no_more_processes_are_followed_than_leave_descriptors_for_the_daemon(
    call: Callable[..., Caller], watch: ProcessWatch
) -> None:
    first, second = call(), call()
    assert meet(watch, first) == first.process.pid
    assert meet(watch, second) is None
    assert meet(watch, first) == first.process.pid


@pytest.mark.parametrize("watch", [12], indirect=True)
def test_many_processes_of_one_user_leave_room_for_those_of_another(
    call: Callable[..., Caller], watch: ProcessWatch
) -> None:
    flood, honest = [call() for _ in range(4)], [call() for _ in range(2)]
    for caller in flood:
        caller.connection = caller.connection._replace(uid=3002)
    assert [meet(watch, caller) is not None for caller in flood] == [True, True, True, False]
    assert [meet(watch, caller) is not None for caller in honest] == [True, False], "two of the flood, and one"
    assert descriptors("pidfd") == 3 + 2, "two wait for a hello that leads to nothing"
    for caller in (flood[0], honest[0]):
        caller.end("os._exit(0)")
        assert [one.process.pid for one in ended(watch)] == [caller.process.pid]


@pytest.mark.parametrize("other", [{"boot": "another"}, {"boot": ""}, {"start": 0}])
def test_a_process_of_another_machine_or_namespace_is_not_followed(
    call: Callable[..., Caller], watch: ProcessWatch, other: dict[str, str | int]
) -> None:
    caller = call()
    assert meet(watch, caller, replace(caller.identity, **other)) is None


@pytest.mark.parametrize("in_time", [True, False])
def test_until_it_is_reaped_how_it_ended_is_not_guessed(
    call: Callable[..., Caller], watch: ProcessWatch, monkeypatch: pytest.MonkeyPatch, *, in_time: bool
) -> None:
    """The exit code of another user's zombie, for example, reads as 0."""
    monkeypatch.setattr(process_exit, "zombie_wait_status", lambda *_: None)
    caller = call()
    meet(watch, caller)
    caller.end("os._exit(3)", reap=False)
    eventually(lambda: watch.ended(moment()) == [] and watch.waits)
    assert watch.ended(moment(PATIENCE_SECONDS - 0.1)) == []
    if in_time:
        caller.process.wait(DEADLINE)
    after = PATIENCE_SECONDS - (0.1 if in_time else 0)
    assert ended(watch, after) == [EndedProcess(process(caller), Exit(3 if in_time else None), moment())]


def test_on_an_older_kernel_a_zombie_shows_its_exit_and_a_reaped_process_does_not(
    call: Callable[..., Caller], watch: ProcessWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ioctl(*_: object) -> int:
        raise OSError(errno.ENOTTY, "Inappropriate ioctl for device")

    monkeypatch.setattr("fcntl.ioctl", ioctl)
    zombie, reaped = call(), call()
    meet(watch, zombie)
    zombie.end("os._exit(3)", reap=False)
    assert ended(watch) == [EndedProcess(process(zombie), Exit(3), moment())]
    meet(watch, reaped)
    reaped.end("os._exit(3)")
    eventually(lambda: watch.ended(moment()) == [] and watch.waits)
    assert watch.ended(moment(PATIENCE_SECONDS)) == [EndedProcess(process(reaped), Exit(None), moment())]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can look as another user")
def test_the_exit_of_another_users_zombie_is_unknown_rather_than_good(call: Callable[..., Caller]) -> None:
    caller = call()
    peer = caller.connection.peer
    assert peer is not None

    def code() -> int | None:
        return process_exit.exit_code(peer.pidfd, peer.pid, caller.identity.start, Path("/proc"))

    caller.end("os._exit(3)", reap=False)
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        os.setgroups([])
        os.setgid(UNUSED_UID)
        os.setuid(UNUSED_UID)
        os.write(writes, repr(code()).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reads, 100) == b"None"
    assert code() == 3
    for descriptor in (reads, writes):
        os.close(descriptor)


def test_with_too_many_watches_a_process_is_not_followed_and_nothing_is_left_open(
    call: Callable[..., Caller], watch: ProcessWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    def register(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(process_exit.PidfdPoller, "register", register)
    assert meet(watch, call()) is None
    assert descriptors("pidfd") == 0


def test_what_the_oom_killer_did_is_asked_when_the_end_comes(
    call: Callable[..., Caller], watch: ProcessWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []

    def killed(kills: OomKills, watched: OomWatch, now: float) -> bool:
        asked.append(now)
        return True

    monkeypatch.setattr(OomKills, "killed", killed)
    caller = call()
    meet(watch, caller)
    caller.end("os.kill(os.getpid(), signal.SIGKILL)")
    assert [one.exit for one in ended(watch, 2.0)] == [Exit(-signal.SIGKILL, oom=True)]
    assert asked == [moment(2.0).monotonic]


def test_the_watch_becomes_readable_with_an_end_and_is_then_quiet(
    call: Callable[..., Caller], watch: ProcessWatch
) -> None:
    caller = call()
    meet(watch, caller)
    poller = zmq.Poller()
    poller.register(watch, zmq.POLLIN)
    assert poller.poll(0) == []
    caller.end("os._exit(0)", reap=False)
    assert poller.poll(PATIENCE_MILLISECONDS) != []
    assert len(watch.ended(moment())) == 1
    assert poller.poll(0) == []
