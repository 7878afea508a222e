"""The wish to end, as signals bring it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from processes import DEADLINE

STOPPED = """
import sys

from trackside_daemon.demo.stop_signal import stop_on_signals

stop = stop_on_signals()
print(flush=True)
sys.stdin.read()
raise SystemExit(0 if stop.is_set() and stop.wait(60) else 1)
"""


def test_signals_may_cut_into_each_other() -> None:
    with subprocess.Popen([sys.executable, "-c", STOPPED], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as stopped:
        assert stopped.stdin is not None
        assert stopped.stdout is not None
        stopped.stdout.readline()
        for number in range(20_000):
            os.kill(stopped.pid, (signal.SIGTERM, signal.SIGINT)[number % 2])
        stopped.stdin.close()
        try:
            assert stopped.wait(DEADLINE) == 0
        finally:
            stopped.kill()
