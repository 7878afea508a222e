"""A thread of the operating system, also where gevent has replaced threads by greenlets."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def native_thread(run: Callable[[], None], name: str) -> threading.Thread | Unpatched:
    """Return a daemon thread that calls *run*, not yet started."""
    # ZeroMQ waits without gevent's knowledge: in a greenlet that would stop the whole program.
    monkey = sys.modules.get("gevent.monkey")
    if monkey is not None and monkey.is_module_patched("threading"):
        return Unpatched(run, *monkey.get_original("_thread", ["start_new_thread", "allocate_lock"]))
    return threading.Thread(target=run, name=name, daemon=True)


class Unpatched:
    """A thread, with the methods of `threading.Thread` that the sender uses."""

    def __init__(self, run: Callable[[], None], start: Callable[..., object], allocate_lock: Callable[[], Any]) -> None:
        self._run, self._start = run, start
        self._running = allocate_lock()

    def start(self) -> None:
        """Start it; RuntimeError if no thread can be had."""
        sys.modules["gevent"].get_hub()  # two threads that make their first hubs at once wait for each other's imports
        self._running.acquire()
        self._start(self._main, ())

    def is_alive(self) -> bool:
        """Return whether it runs."""
        return bool(self._running.locked())

    def join(self, timeout: float) -> None:
        """Wait until it has ended, at most *timeout* seconds."""
        if self._running.acquire(timeout=timeout):
            self._running.release()

    def _main(self) -> None:
        try:
            self._run()
        finally:
            self._running.release()
