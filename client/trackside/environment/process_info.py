"""Describe what this process runs: command, directory, interpreter, system, imported packages, state of the code."""

from __future__ import annotations

import os
import sys
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, TypeVar

from trackside.environment.git import dirty
from trackside.environment.identity import parent_of, start_time
from trackside.packing import writable
from trackside.redact import redact_command, redact_text
from trackside.wire import ProcessInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from trackside.environment.clocks import Clocks

_POD = ("POD_NAME", "K8S_POD_NAME", "MY_POD_NAME", "HOSTNAME")

_NAMESPACE = ("POD_NAMESPACE", "K8S_POD_NAMESPACE", "K8S_NAMESPACE", "MY_POD_NAMESPACE")

_CONTAINER = ("CONTAINER_NAME", "K8S_CONTAINER_NAME")

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")

MAX_NAMESPACE_BYTES = 1024  # limit of bytes that are read of that file
COMMAND_BYTES = 16 * 1024  # limit of the command; the limits below are those of the other fields
DIRECTORY_BYTES = 4096
VERSION_LENGTH = 64
NAME_LENGTH = 256
PACKAGES = 200
CORRELATION_BYTES = 256
VARIABLES = 64
PARENTS = 16
# Beginnings of variables that set threads, memory, devices and the network of PyTorch and the libraries below it.
SPEED = (
    *("OMP_", "KMP_", "MKL_", "OPENBLAS_", "MALLOC_", "LD_PRELOAD", "CUDA_", "CUBLAS_", "CUDNN_", "NVIDIA_TF32_"),
    *("PYTORCH_", "TORCH_", "NCCL_", "GLOO_", "HSA_", "HIP_", "ROCR_", "XLA_", "TOKENIZERS_PARALLELISM"),
)
POD_BYTES = 253  # limit of Kubernetes' own names

T = TypeVar("T")

_namespace = vars(ModuleType)["__dict__"].__get__
"""Reader of a module's own names. An access to the module itself would make a lazy module import itself."""


def process_info() -> ProcessInfo:
    """Return this process's `ProcessInfo`, which the first call determines.

    That takes a few ms, and at most `trackside.environment.git.COMPARE_SECONDS`. It never raises: unknown fields are left out.
    """
    return _process_info(os.getpid())


@lru_cache(maxsize=1)
def _process_info(_pid: int) -> ProcessInfo:  # by pid, so that a forked child determines its own
    return ProcessInfo(
        command=_or((), lambda: tuple(redact_command(command(sys.orig_argv)))),  # sys.argv lacks the interpreter
        directory=_or("", lambda: redact_text(_cut(str(Path.cwd()), DIRECTORY_BYTES))),
        python=_or("", lambda: _cut(sys.version.partition(" ")[0], VERSION_LENGTH)),
        platform=_or("", _platform),
        packages=_or({}, lambda: packages(sys.modules)),
        environ=_or({}, lambda: environ(os.environ)),
        git_dirty=_or(None, lambda: dirty(sys.argv[0] if sys.argv else "")),
        k8s_pod=_or("", lambda: _cut(pod(os.environ), POD_BYTES)),
        k8s_namespace=_or("", lambda: _cut(namespace(os.environ), POD_BYTES)),
        k8s_container=_or("", lambda: _cut(container(os.environ), POD_BYTES)),
        partition=_or("", lambda: _cut(os.environ.get("SLURM_JOB_PARTITION", ""), POD_BYTES)),
        launch=_or("", lambda: _cut(os.environ.get("TRACKSIDE_LAUNCH", ""), VERSION_LENGTH)),
        correlation=_or("", lambda: correlation(os.environ)),
        parents=_or(None, lambda: parents(Path("/proc"))),
        daemonic=_daemonic(),
    )


STARTUP_SECONDS = 6 * 3600  # a process that began its first run later did something else before

_begun = 0
"""Pid of the process, if its first session has begun: a forked child has its own."""


def startup(began: Clocks, proc: Path = Path("/proc")) -> int:
    """Return nanoseconds from the start of this process until its first session *began*; 0 from its second session on.

    They are 0, too, if that is unknown, in a notebook or a shell, and in a worker that existed before its task.
    """
    global _begun
    first, _begun = _begun != os.getpid(), os.getpid()
    ticks = start_time(proc, "self") if first else 0
    if not ticks or is_interactive() or "RAY_JOB_ID" in os.environ or _daemonic():
        return 0
    age = began.monotonic + began.asleep - ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    return age if 0 < age < STARTUP_SECONDS * 1e9 else 0


def is_interactive() -> bool:
    """Return whether this process is a shell or a notebook's kernel, which may live for days; one that starts kernels is not."""
    return hasattr(sys, "ps1") or "ipykernel.kernelapp" in sys.modules


def _daemonic() -> bool:
    """Return whether this process is a daemon process of `multiprocessing`."""
    return _or(False, lambda: sys.modules["multiprocessing.process"].current_process().daemon)


def parents(proc: Path) -> tuple[tuple[int, int], ...]:
    """Return the pid and the start time of the parent, of its parent and so on, as far as *proc* shows them."""
    found: list[tuple[int, int]] = []
    pid = os.getppid()
    while pid > 0 and len(found) < PARENTS:
        found.append((pid, start_time(proc, pid)))
        pid = parent_of(proc, pid)
    return tuple(found)


def correlation(environ: Mapping[str, str]) -> str:
    """Return the id by which other systems refer to this job, in `CORRELATION_BYTES` of UTF-8; empty for none.

    It is ``$TRACKSIDE_CORRELATION_ID``, else the header of W3C Trace Context in ``$TRACEPARENT`` or ``$traceparent``.
    """
    names = ("TRACKSIDE_CORRELATION_ID", "TRACEPARENT", "traceparent")
    return _cut(next((environ[name].strip() for name in names if environ.get(name, "").strip()), ""), CORRELATION_BYTES)


def command(arguments: Iterable[str]) -> tuple[str, ...]:
    """Return the *arguments* that fit into `COMMAND_BYTES`, with one byte for the space after each."""
    kept: list[str] = []
    left = COMMAND_BYTES
    for argument in arguments:
        kept.append(_cut(argument, left))
        left -= len(kept[-1].encode()) + 1
        if left <= 0 or len(kept[-1]) < len(argument):
            break
    return tuple(kept)


def packages(modules: dict[str, ModuleType]) -> dict[str, str]:
    """Return the versions of the first `PACKAGES` imported packages among *modules*, sorted by name.

    A package is a module with a text ``__version__`` that does not come with Python.
    """
    versions: dict[str, str] = {}
    for name, module in modules.copy().items():  # other threads import concurrently
        if len(versions) == PACKAGES:
            break
        if "." in name or len(name) > NAME_LENGTH or name in sys.stdlib_module_names:
            continue
        version = _version(module)
        if version:
            versions[writable(name)] = version
    return dict(sorted(versions.items()))


def environ(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the first `VARIABLES` *variables* that change the speed of a training, sorted by name."""
    chosen = [name for name in sorted(variables) if name.startswith(SPEED) and len(name) <= NAME_LENGTH]
    return {name: redact_text(_cut(variables[name], NAME_LENGTH)) for name in chosen[:VARIABLES]}


def _version(module: object) -> str:
    """Return the module's ``__version__`` without running any code of it; empty if it has none."""
    if not issubclass(type(module), ModuleType):  # None, or any object that other code has put there
        return ""
    version = (_namespace(module) or {}).get("__version__")  # Python 3.10 gives a module that was not begun none
    return _cut(str.__str__(version), VERSION_LENGTH) if issubclass(type(version), str) else ""


def _platform() -> str:
    system = os.uname()
    return _cut(f"{system.sysname} {system.release} {system.machine}", NAME_LENGTH)


def _cut(text: str, size: int) -> str:
    """Return *text* in at most *size* bytes of UTF-8."""
    return writable(text).encode()[:size].decode(errors="ignore")


def _or(otherwise: T, find: Callable[[], T]) -> T:
    try:
        return find()
    except Exception:  # noqa: BLE001  user code may have put anything into sys, and training goes on
        return otherwise


def pod(environ: Mapping[str, str]) -> str:
    """Return the pod's name; empty outside of Kubernetes.

    With ``hostNetwork`` the manifest must set a variable, since HOSTNAME is the node's name then.
    """
    return _first(environ, _POD)


def namespace(environ: Mapping[str, str], account: Path = ACCOUNT) -> str:
    """Return the pod's namespace, from a variable or the mounted service account; empty outside of Kubernetes.

    Raises:
        OSError: The file cannot be read, and there is no variable.
    """
    variable = _first(environ, _NAMESPACE)
    if variable or not _is_pod(environ):
        return variable
    with account.open("rb") as file:
        return file.read(MAX_NAMESPACE_BYTES).decode(errors="replace").strip()


def container(environ: Mapping[str, str]) -> str:
    """Return the container's name, which only the manifest can provide; empty if it does not."""
    return _first(environ, _CONTAINER)


def _first(environ: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((environ[name] for name in names if environ.get(name)), "") if _is_pod(environ) else ""


def _is_pod(environ: Mapping[str, str]) -> bool:
    return "KUBERNETES_SERVICE_HOST" in environ
