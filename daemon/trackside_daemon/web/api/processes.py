"""Endpoints of the processes that train or use a GPU."""

import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from trackside.redact import redact_command
from trackside_daemon.collectors.process.process import TrainingProcess
from trackside_daemon.linux.user_names import user_name
from trackside_daemon.model.families import gpu as gpu_families
from trackside_daemon.model.state import State
from trackside_daemon.web.api.history_access import decoded_body

MAX_COMMAND = 400  # characters of a command line
_ON_GPU = {"memory_bytes": gpu_families.PROCESS_MEMORY, "sm_utilization_ratio": gpu_families.PROCESS_SM_UTILIZATION}


class EndBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request to end a process."""

    started: float
    kill: bool = False


@dataclass(eq=False)
class ProcessesApi:
    """Lists processes, and ends those of trainings."""

    _newest: Callable[
        [], Sequence[TrainingProcess]
    ]  # returns those of the last tick, each rank followed by its child processes
    _state: State
    _proc: Path  # of procfs

    async def processes(self, _request: Request) -> Response:
        """List the processes on this machine that train or use a GPU, as of the last tick."""
        return JSONResponse({"processes": await run_in_threadpool(self._list)})

    async def end_process(self, request: Request) -> Response:
        """Ask a process of a training to end, by SIGTERM."""
        wanted = await decoded_body(request, EndBody, '{"started": …}')
        pid = request.path_params["pid"][:20]
        process = next((one for one in self._newest() if str(one.pid) == pid), None)
        if process is None or process.started is None or abs(process.started - wanted.started) > 1:
            raise HTTPException(409, f"process {pid}: no such process of a training; load the list again")
        try:
            self._signal(process, signal.SIGKILL if wanted.kill else signal.SIGTERM)
        except (ProcessLookupError, FileNotFoundError):
            raise HTTPException(409, f"process {pid}: has ended already") from None
        except PermissionError:
            raise HTTPException(403, f"process {pid}: belongs to another user than the daemon") from None
        return JSONResponse({"pid": process.pid, "signal": "SIGKILL" if wanted.kill else "SIGTERM"})

    def _signal(self, process: TrainingProcess, number: int) -> None:
        """Send a signal to a process, which has to be of the same user as its rank (pidfd_send_signal(2)).

        A descriptor stays that of one process, whereas a pid may become another's at any moment.
        """
        handle = os.pidfd_open(process.pid)
        try:
            wanted = ("rank", process.run_id, process.rank)
            ranks = [one.pid for one in self._newest() if (one.role, one.run_id, one.rank) == wanted]
            if len({self._owner(pid) for pid in (process.pid, *ranks)}) > 1:
                raise HTTPException(403, f"process {process.pid}: belongs to another user than its training")
            if not _is_same(process):
                raise ProcessLookupError
            signal.pidfd_send_signal(handle, number)
        finally:
            os.close(handle)

    def _owner(self, pid: int) -> int:
        return (self._proc / str(pid)).stat().st_uid

    def _list(self) -> list[dict[str, Any]]:
        on_gpus = self._on_gpus()
        rows = [{**one._asdict(), **self._details(one.pid), "gpus": on_gpus.pop(one.pid, [])} for one in self._newest()]
        alone = {"parent": None, "role": "gpu", "run": None}
        return rows + [
            {"pid": pid, **alone, "comm": self._comm(pid), **self._details(pid), "gpus": gpus}
            for pid, gpus in sorted(on_gpus.items())
        ]

    def _on_gpus(self) -> dict[int, list[dict[str, Any]]]:
        """Return by pid its memory and utilization on each GPU."""
        found: dict[int, dict[str, dict[str, Any]]] = {}
        families = self._state.values(time.monotonic(), *_ON_GPU.values())
        for name, series in zip(_ON_GPU, families, strict=True):
            for (gpu, _, pid), value in series.items():
                found.setdefault(int(pid), {}).setdefault(gpu, {"gpu": gpu})[name] = value
        return {pid: list(gpus.values()) for pid, gpus in found.items()}

    def _details(self, pid: int) -> dict[str, str | None]:
        """Return user and command of a process; None for what the daemon may not see."""
        try:
            owner = (self._proc / str(pid)).stat().st_uid
            command = (self._proc / str(pid) / "cmdline").read_bytes()[: 2 * MAX_COMMAND]
        except OSError:
            return {"user": None, "command": None}
        words = redact_command(command.decode(errors="replace").rstrip("\0").split("\0"))
        return {"user": user_name(owner) or str(owner), "command": " ".join(words)[:MAX_COMMAND] or None}

    def _comm(self, pid: int) -> str:
        try:
            return (self._proc / str(pid) / "comm").read_text(errors="replace").strip()
        except OSError:
            return ""


def _is_same(process: TrainingProcess) -> bool:
    import psutil

    try:
        return process.started is not None and abs(psutil.Process(process.pid).create_time() - process.started) <= 1
    except psutil.Error:
        return False
