"""Processes that start without their imports: a server that has imported them forks for each.

A daemon spends most of its start with imports, and a training with that of torch. The forked process is a child of the test,
has its own environment, directory and standard streams, and runs the same code. Tests of the start itself execute Python.
What torchrun starts is forked as well, and so is on request what `multiprocessing` spawns, by a server that is a child of theirs.
"""

from __future__ import annotations

import array
import atexit
import ctypes
import fcntl
import gc
import importlib
import inspect
import io
import json
import multiprocessing.util
import os
import re
import runpy
import signal
import socket
import subprocess
import sys
import threading
import warnings
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from pkgutil import walk_packages
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

_MESSAGE_BYTES = 1024 * 1024
_PR_SET_CHILD_SUBREAPER = 36  # prctl(2)
_EARLY = (
    "PYTHON",
    "LD_",
    "MALLOC_",
    "OMP_",
    "MKL_",
    "OPENBLAS_",
    "TEST_CLOCK",
)  # variables that a process reads while it starts


_STREAMS = {"stdin", "stdout", "stderr", "bufsize", "text", "encoding", "errors"}
_OPTIONS = {*_STREAMS, "env", "cwd", "start_new_session", "pass_fds"}
_PR_SET_PDEATHSIG = 1  # prctl(2)

Groups = tuple[tuple[str, ...], ...]
CLIENT = ("trackside", "trackside.run", "trackside.log_filter")
LARGE = {
    "torch": ("torch", "torch._dynamo", "torch.distributed.run"),  # the first optimizer imports _dynamo, for a second
    "accelerate": ("accelerate",),
    "transformers": ("transformers.trainer",),
    "lightning": ("lightning.pytorch",),
    "ignite": ("ignite.engine", "ignite.metrics"),
}
"""Libraries that scripts and code import, and what a server imports for them."""

TORCHRUN = "torch.distributed.run"
WITH_CHILDREN = [["-m", "trackside_daemon", name] for name in ("daemon", "demo", "doctor", "run")]
"""Commands whose children, such as a daemon's workers, are forked: each would import for 50 to 300 ms."""

_Popen = subprocess.Popen
_GIVEN = (
    *("executable", "preexec_fn", "close_fds", "pass_fds", "cwd", "env", "startupinfo", "creationflags", "shell"),
    *("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite"),
)
FORKS = tuple(inspect.signature(vars(_Popen)["_execute_child"]).parameters)[2:17] == _GIVEN
"""Whether this Python's `subprocess.Popen` starts a process by the private method that is replaced; otherwise it executes Python."""


class ForkedProcess(subprocess.Popen[Any]):
    """A `subprocess.Popen` of this Python that a fork server starts.

    Args:
        arguments: The command: `sys.executable`, then ``-W FILTER``, ``-m MODULE``, ``-c CODE`` or a script, and arguments.
        modules: What the server imports before it forks, or ``MODULE:FUNCTION``, which it also calls, in groups: a server is
            forked from that of the groups before.
        nursery: Whether what its `multiprocessing` spawns is forked, from a child of it that has its imports alone.
        ends_with_parent: The signal that it gets as its parent ends; 0 is none.
        options: The rest of `subprocess.Popen`: those in `_OPTIONS`.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        modules: Groups,
        *,
        nursery: bool = False,
        ends_with_parent: int = 0,
        **options: Any,
    ) -> None:
        if refused := options.keys() - _OPTIONS:
            raise TypeError(f"a forked process cannot have {', '.join(sorted(refused))}")
        self._modules = modules
        self._fds = [*options.get("pass_fds", ())]
        session = options.get("start_new_session", False)
        self._start = {"nursery": nursery, "session": session, "fds": self._fds, "signal": ends_with_parent}
        super().__init__(arguments, **options)

    def _execute_child(self, args: list[str], *given: Any) -> None:
        if not FORKS:
            super()._execute_child(args, *given)  # type: ignore[misc]
            return
        _, _, _, _, cwd, env, _, _, _, *streams = given[:15]
        environ = dict(env or os.environ)
        start = {"arguments": list(args[1:]), "cwd": str(cwd or Path.cwd()), "env": environ, **self._start}
        p2cread, _, _, c2pwrite, _, errwrite = streams
        ends = [p2cread, c2pwrite, errwrite]
        try:
            server = _nursery or _server(self._modules, _early(environ))
            streams_or_ours = [end if end >= 0 else number for number, end in enumerate(ends)]
            self.pid = server.fork(start, [*streams_or_ours, *self._fds])
            self._child_created = True
        finally:
            self._close_pipe_fds(*streams)  # type: ignore[attr-defined]


def preloaded(arguments: Sequence[str]) -> Groups:
    """Return what a server imports for a command of this Python."""
    rest = list(arguments[1:])
    while rest[0] == "-W":
        del rest[:2]
    if rest[:2] == ["-m", "trackside_daemon"]:
        return (CLIENT, _commands())
    if rest[0] == "-m" and rest[1] != TORCHRUN:
        return ((),)
    code = rest[1] if rest[0] == "-c" else "import torch" if rest[0] == "-m" else ""
    scripts = [Path(one) for one in rest if one.endswith(".py") and rest[0] != "-c"]
    code = "\n".join([code, *(one.read_text(encoding="utf-8") for one in scripts if one.exists())])
    large, ours = _large(code), "trackside_daemon" in code
    if not large:
        return (CLIENT, _commands()) if ours else (CLIENT,)
    # Last what is imported quickest: the server with PyTorch is that of other scripts too.
    return (CLIENT, *large, *([_commands()] if ours else []))


@cache
def _commands() -> tuple[str, ...]:
    # All modules of the command line: commands import many of them late.
    package = importlib.import_module("trackside_daemon.cli")
    found = walk_packages(package.__path__, f"{package.__name__}.")
    dashboard = "trackside_daemon.web.dashboard:_files"  # compressed as the daemon starts, and then kept
    workers = "trackside_daemon.ingest.worker.worker", "trackside_daemon.nvml.worker.driver"
    return (
        "trackside_daemon.service.daemon",
        *(module.name for module in found),
        *workers,
        "pydantic.type_adapter",
        dashboard,
    )


def _prepare() -> None:
    """Do once a part of what each command does as it starts: types of settings and options, parameters and patterns of addresses."""
    from starlette.routing import Route

    from trackside_daemon.cli import main
    from trackside_daemon.questions.question import parameters
    from trackside_daemon.service.config import Config
    from trackside_daemon.web.api.endpoints import ENDPOINTS

    vars(main)["load"] = cache(main.load)
    for parameter in (one for name in ("daemon", "run") for one in main.load(name).params):
        getattr(parameter, "get_runtime_param", lambda: None)()  # not of an older typer
    Config.model_rebuild()
    for endpoint in ENDPOINTS:
        Route(f"/api/v1{endpoint.path}", _prepare)
        if endpoint.parameters:
            parameters(endpoint.parameters)


def _large(code: str) -> Groups:
    named = [name for name in LARGE if re.search(rf"^ *(?:import|from) .*\b{name}\b", code, re.MULTILINE)]
    for name in named:
        if find_spec(name) is None:
            raise ModuleNotFoundError(f"{name} is not installed", name=name)
    return tuple(LARGE[name] for name in named)


def _early(environ: dict[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(item for item in environ.items() if item[0].startswith(_EARLY)))


class _Server:
    """The end of a fork server's socket that requests come from; the server ends with the process that has it."""

    def __init__(self, control: socket.socket) -> None:
        self._socket = control
        self._lock = threading.Lock()

    def fork(self, start: dict[str, Any], streams: list[int]) -> int:
        """Start a process whose standard streams, and then the descriptors of *start*, are these; return its pid."""
        # The process between the server and the new one ends at once, and this process adopts the new one.
        with self._lock:
            return self._fork(start, streams)

    def _fork(self, start: dict[str, Any], streams: list[int]) -> int:
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        try:
            body = json.dumps(start).encode(errors="surrogateescape")
            self._socket.sendmsg([body], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", streams))])
            return int(self._socket.recv(64))
        finally:
            _prctl(_PR_SET_CHILD_SUBREAPER, 0)


_nursery: _Server | None = None
"""The server that is a child of this process, if it has one."""


@cache
def _server(modules: Groups, early: tuple[tuple[str, str], ...]) -> _Server:
    control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    *before, last = modules
    if before:
        with theirs:
            start = {"modules": last, "fds": [3], "session": False, "signal": 0}
            _server(tuple(before), early).fork(start, [0, 1, 2, theirs.fileno()])
        return _Server(control)
    environ = {name: value for name, value in os.environ.items() if not name.startswith(_EARLY)}
    environ["ROOM"] = " " * 4096  # for the variables that `_name` shows
    command = [sys.executable, __file__, str(theirs.fileno()), *last]
    with theirs:
        _processes.append(subprocess.Popen(command, env={**environ, **dict(early)}, pass_fds=[theirs.fileno()]))
    return _Server(control)


_processes: list[subprocess.Popen[bytes]] = []
"""The servers: a `subprocess.Popen` that goes while its process runs is warned of."""


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def _serve(control: socket.socket) -> dict[str, Any] | None:
    """Fork for each request; return it in the new process, None at the end of the server."""
    while True:
        body, ancillary, _, _ = control.recvmsg(_MESSAGE_BYTES, socket.CMSG_SPACE(64 * array.array("i").itemsize))
        if not body:
            return None
        streams = array.array("i", ancillary[0][2])
        pids, pid_written = os.pipe()
        gate, opened = os.pipe()
        if (middle := os.fork()) == 0:
            if pid := os.fork():
                os.write(pid_written, str(pid).encode())
                os._exit(0)
            os.close(opened)
            os.read(gate, 1)  # until its parent is the test, which some processes ask for as they start
            start = dict(json.loads(body))
            if start["session"]:
                os.setsid()
            if start["signal"]:
                _prctl(_PR_SET_PDEATHSIG, start["signal"])
            _place(streams, [0, 1, 2, *start["fds"]], {pids, pid_written, gate, control.detach()})
            return start
        os.waitpid(middle, 0)
        answer = os.read(pids, 64)
        for end in (*streams, pids, pid_written, gate, opened):
            os.close(end)
        control.send(answer)


def _open_streams() -> None:
    """Open the standard streams as Python does at its start: those of the server are buffered for its own files."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        old = getattr(sys, name)
        raw = open(number, f"{old.mode}b", closefd=False)  # noqa: SIM115
        by_line = number == 2 or os.isatty(number)
        newline = "\n" if number else None
        new = io.TextIOWrapper(raw, old.encoding, old.errors, newline, by_line, write_through=old.write_through)
        new.mode = old.mode  # type: ignore[misc]
        setattr(sys, name, new)
        setattr(sys, f"__{name}__", new)


def _place(streams: Sequence[int], numbers: list[int], others: set[int]) -> None:
    """Give descriptors these numbers, and close the *others*."""
    free = max(*streams, *numbers, *others) + 1
    moved = [fcntl.fcntl(stream, fcntl.F_DUPFD, free) for stream in streams]
    for stream, number in zip(moved, numbers, strict=True):
        os.dup2(stream, number)
    for descriptor in {*streams, *moved, *others}.difference(numbers):
        os.close(descriptor)


def _open_nursery() -> dict[str, Any] | None:
    """Fork a server that has what this process has; return None, or a request in the process that it forks for it."""
    global _nursery  # noqa: PLW0603
    control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        control.close()
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends this server
        if (request := _serve(theirs)) is None:
            os._exit(0)
        signal.signal(signal.SIGINT, before)
        return request
    theirs.close()
    _nursery = _Server(control)
    vars(multiprocessing.util)["spawnv_passfds"] = _spawn
    if TORCHRUN in sys.modules:
        handler = sys.modules["torch.distributed.elastic.multiprocessing.subprocess_handler.subprocess_handler"]
        vars(handler)["Popen"] = lambda args, **options: ForkedProcess(args, (), **options)
    subprocess.Popen = _popen  # type: ignore[assignment,misc]
    return None


def _popen(args: Any, *, preexec_fn: Any = None, **options: Any) -> subprocess.Popen[Any]:
    """Fork a child of a command, which is of the same package, and execute any other."""
    ours = args[0] == sys.executable and any(str(one).startswith("trackside_daemon") for one in args[1:4])
    if not ours or options.keys() - _OPTIONS:
        return _Popen(args, preexec_fn=preexec_fn, **options)
    # `linux.child_process` has no other function than `end_with_parent`, with the pid and the signal.
    return ForkedProcess(args, (), ends_with_parent=int(preexec_fn.args[1]) if preexec_fn else 0, **options)


def _spawn(_path: bytes, args: Sequence[str | bytes], passfds: Sequence[int]) -> int:
    """Do as `multiprocessing.util.spawnv_passfds` does, whose caller waits for the process."""
    fds, arguments = list(passfds), [os.fsdecode(one) for one in args[1:]]
    start = {"arguments": arguments, "cwd": str(Path.cwd()), "env": dict(os.environ), "fds": fds}
    assert _nursery is not None
    return _nursery.fork({**start, "nursery": False, "session": False, "signal": 0}, [0, 1, 2, *fds])


def _name(arguments: Sequence[str], environ: dict[str, str]) -> None:
    """Show the command and its variables in /proc/PID/cmdline and environ, in place of the server's, as far as they fit."""
    try:
        places = Path("/proc/self/stat").read_text(encoding="ascii").rpartition(")")[2].split()[45:49]
    except OSError:
        return  # a test hides /proc
    command = [sys.executable, *arguments]
    if "-c" in command and len("\0".join(command)) >= int(places[1]) - int(places[0]):
        command[command.index("-c") + 1] = ""  # rather than the name of the module behind it
    ours_first = sorted(environ.items(), key=lambda item: (not item[0].startswith("TRACKSIDE_"), len(item[1])))
    for parts, begin, end in (
        (command, int(places[0]), int(places[1])),
        ([f"{name}={text}" for name, text in ours_first], int(places[2]), int(places[3])),
    ):
        line = "\0".join(parts).encode(errors="surrogateescape")[: end - begin - 1]
        ctypes.memmove(begin, line.ljust(end - begin, b"\0"), end - begin)


def _run(start: dict[str, Any]) -> None:
    """Do what Python does with these arguments."""
    _open_streams()
    os.chdir(start["cwd"])
    os.environ.clear()
    os.environ.update(start["env"])
    kind, *rest = start["arguments"]
    while kind.startswith("-") and kind not in {"-m", "-c"}:
        if kind == "-u":
            sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]
        if kind.startswith("-W"):
            sys.warnoptions.append(kind[2:] or rest.pop(0))
        kind, *rest = rest  # -B, too, which `multiprocessing` hands on
    warnings._processoptions(sys.warnoptions)  # type: ignore[attr-defined]  # as Python does at its start
    if kind == "-m":
        sys.argv = rest
        sys.path[0] = start["cwd"]
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        sys.argv = ["-c", *rest[1:]]
        sys.path[0] = ""
        main = type(sys)("__main__")
        sys.modules["__main__"] = main
        exec(compile(rest[0], "<string>", "exec"), main.__dict__)
    else:
        sys.argv = [kind, *rest]
        sys.path[0] = str(Path(kind).resolve().parent)
        runpy.run_path(kind, run_name="__main__")


def _end(status: int) -> None:
    """End as Python does, except that modules are not cleared: each page that this touches is copied, which takes 50 ms."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        return  # Python reports it at its end
    os._exit(status & 0xFF)


if __name__ == "__main__":
    request: dict[str, Any] | None = {"modules": sys.argv[2:], "fds": [int(sys.argv[1])]}
    gc.disable()  # collecting garbage is a quarter of an import of PyTorch
    while request and "modules" in request:
        for module, _, function in (name.partition(":") for name in request["modules"]):
            imported = importlib.import_module(module)
            if function:
                getattr(imported, function)()
        if "trackside_daemon.cli.main" in sys.modules:
            _prepare()
        gc.freeze()
        request = _serve(socket.socket(fileno=request["fds"][0]))
    if request is None:
        os._exit(0)
    gc.enable()
    while (
        request["nursery"] or request["arguments"][:2] == ["-m", TORCHRUN] or request["arguments"][:3] in WITH_CHILDREN
    ):
        if (child := _open_nursery()) is None:
            break
        request = child  # which may be a daemon, with children of its own
    _name(request["arguments"], request["env"])
    status: Any = None
    try:
        _run(request)
    except SystemExit as end:
        status = end.code
        if not isinstance(status, int | None):
            raise
    # Warnings of objects that nobody closed come as modules are cleared.
    if "-W" not in request["arguments"] and "PYTHONWARNINGS" not in request["env"]:
        _end(status or 0)
    sys.exit(status)
