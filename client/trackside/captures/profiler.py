"""Profiles that this process records itself, for a daemon that its PyTorch does not ask.

A thread of the client turns PyTorch's profiler on for all threads, and off again, which holds the GIL for some microseconds per
event. A short profile first measures that, and limits the duration of the profile proper.
"""

import ctypes
import os
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

from trackside.captures.kineto import BUSY, is_ending, is_tested
from trackside.limits import PROFILE_SECONDS
from trackside.wire import MESSAGE_BYTES, Profile, ProfileQuestion

HOLD_SECONDS = 0.15  # the longest time for which the GIL is held
FIRST_SECONDS = 0.05  # duration of the profile that measures the events
# What a profiler of the training's own calls in torch.autograd.profiler.
STARTERS = ("_prepare_profiler", "_enable_profiler")

# Of libtorch_cpu.so: the least severity of the lines on standard error.
LOG_LEVEL = "_ZN9libkineto6Logger14severityLevel_E"
OTHER_THREAD = b"ERROR: External init callback must run in same thread as registerClient"  # has no consequence here

CANCELLED = "the process ended or began a profile of its own, or the capture was cancelled"


class _Recorder:
    """The profiler of this process. PyTorch crashes if another one starts meanwhile, or if the process ends."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._process = 0  # that of the recording: a forked child has a copy of this, whose lock may never be released
        self._over = threading.Event()
        self._active = False
        self._level: tuple[Any, int] | None = None  # that of PyTorch's lines, and its value before the recording

    def end(self) -> bool:
        """Have the recording end, and prevent the next one of the same profile; return whether this process records."""
        if self._process != os.getpid():
            return False
        self._over.set()
        return True

    def cancel(self) -> None:
        """End the recording before this returns, and prevent the next one of the same profile."""
        if self.end():
            with self._lock:
                self._disable()

    def record(self, question: ProfileQuestion, path: Path, seconds: float) -> float:
        """Write a trace, and return for how many seconds that held the GIL."""
        torch = sys.modules["torch"]
        options = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)  # noqa: SLF001  there is no public way
        config = torch.autograd.ProfilerConfig(
            torch.autograd.ProfilerState.KINETO,
            question.shapes,
            question.memory,
            question.stacks,
            False,  # no FLOPs
            False,  # no modules
            options,
            "",
        )
        activities = torch.profiler.supported_activities()
        with self._lock:
            if self._over.is_set() or is_ending() or torch.autograd.profiler._is_profiler_enabled:  # noqa: SLF001
                raise _CancelledError
            _without_line(partial(torch._C._autograd._prepare_profiler, config, activities))  # noqa: SLF001
            self._silence(torch)
            torch._C._autograd._enable_profiler(config, activities)  # noqa: SLF001
            self._active = True
        self._over.wait(seconds)
        with self._lock:
            begun = time.thread_time()
            result = self._disable()
            if result is None or self._over.is_set():
                raise _CancelledError
            result.save(str(path))
            return time.thread_time() - begun

    def _disable(self) -> Any:
        if not self._active:
            return None
        self._active = False
        return sys.modules["torch"]._C._autograd._disable_profiler()  # noqa: SLF001

    def _silence(self, torch: Any) -> None:
        """Have PyTorch write no line about this recording to standard error, unless the user has chosen which it writes."""
        if self._level is None and "KINETO_LOG_LEVEL" not in os.environ:
            with suppress(AttributeError, OSError, ValueError):  # another build of PyTorch
                library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
                level = ctypes.c_int.in_dll(library, LOG_LEVEL)
                self._level, level.value = (level, level.value), 99

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Cancel the recording when the training starts a profiler of its own."""
        module = sys.modules["torch"].autograd.profiler
        originals = {name: getattr(module, name) for name in STARTERS}
        self._process = os.getpid()
        self._over.clear()
        for name, original in originals.items():
            setattr(module, name, self._after_cancel(original))
        try:
            yield
        finally:
            for name, original in originals.items():
                setattr(module, name, original)
            if self._level is not None:
                (level, before), self._level = self._level, None
                level.value = before

    def _after_cancel(self, original: Any) -> Any:
        def start(*given: Any, **named: Any) -> Any:
            self.cancel()
            return original(*given, **named)

        return start


def _without_line(call: Callable[[], object]) -> None:
    """Call, without the line of PyTorch which the first recording writes, since another thread has imported PyTorch.

    Only C's ``stderr`` is another file meanwhile, never the descriptor, which other threads and child processes use.
    """
    c = ctypes.CDLL(None)
    if not hasattr(c, "gnu_get_libc_version"):  # others have a constant
        call()
        return
    descriptor, file = _file_of_c(os.getpid())
    stderr = ctypes.c_void_p.in_dll(c, "stderr")
    before, stderr.value = stderr.value, file
    try:
        call()
    finally:
        stderr.value = before
        written = os.pread(descriptor, 1 << 20, 0).splitlines(keepends=True)
        os.ftruncate(descriptor, 0)
        for line in written:
            if not line.startswith(OTHER_THREAD):
                with suppress(OSError):
                    os.write(2, line)


@cache  # a thread may write to it at any time, so it is never closed
def _file_of_c(_process: int) -> tuple[int, int]:
    """Return a file in memory without a buffer: its descriptor, and its address for C."""
    c = ctypes.CDLL(None)
    c.fdopen.restype, c.setbuf.argtypes = ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_void_p)
    descriptor = os.memfd_create("trackside")
    file: int = c.fdopen(descriptor, b"a")
    c.setbuf(file, None)
    return descriptor, file


class _CancelledError(Exception):
    """There is no profile."""


_recorder = _Recorder()
cancel, end = _recorder.cancel, _recorder.end


def profile(question: ProfileQuestion) -> Profile:
    """Record a profile, and return it; or why there is none."""
    try:
        if refusal := _refusal():
            return Profile(error=refusal)
        with tempfile.TemporaryDirectory(prefix="trackside-") as directory, _recorder.guarded():
            path = Path(directory) / "trace.json"
            held = _recorder.record(question, path, FIRST_SECONDS)
            seconds = min(question.seconds, PROFILE_SECONDS, FIRST_SECONDS * HOLD_SECONDS / max(held, 1e-6))
            if seconds < min(FIRST_SECONDS, question.seconds):
                return Profile(
                    error=f"its events would hold the GIL for {held:.2f} s each {FIRST_SECONDS * 1000:.0f} ms"
                )
            _recorder.record(question, path, seconds)
            return _sent(path)
    except _CancelledError:
        return Profile(error=CANCELLED)
    except Exception as error:  # noqa: BLE001  of private functions of PyTorch: the training goes on
        return Profile(error=f"PyTorch cannot be profiled from another thread: {type(error).__name__}: {error}"[:300])


def _refusal() -> str:
    torch = sys.modules.get("torch")
    if torch is None:
        return "it has not imported PyTorch"
    if not is_tested(torch.__version__):
        return f"its PyTorch {torch.__version__} is not one of the tested versions, and is left alone"
    return BUSY if torch.autograd.profiler._is_profiler_enabled else ""  # noqa: SLF001


def _sent(path: Path) -> Profile:
    compress = zlib.compressobj(1, wbits=31)
    trace = compress.compress(path.read_bytes()) + compress.flush()
    if len(trace) > MESSAGE_BYTES - 1024:
        return Profile(error=f"its trace of {len(trace) >> 20} MiB is too large to be sent; record fewer steps")
    return Profile(trace)
