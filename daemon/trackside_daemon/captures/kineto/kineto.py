"""The parts of the protocol together, for the daemon."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from trackside.captures.kineto import socket_directory
from trackside_daemon.captures.kineto.pollers import Pollers
from trackside_daemon.captures.kineto.profiler_socket import ProfilerSocket
from trackside_daemon.captures.kineto.recorder import KinetoRecorder
from trackside_daemon.captures.kineto.socket_file import DirectoryError
from trackside_daemon.captures.kineto.windows import Windows
from trackside_daemon.model.metric import Batch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from trackside_daemon.captures.kinds.kind import AskRanks
    from trackside_daemon.model.rank_process import RankProcess

log = logging.getLogger("trackside")


class Kineto:
    """The socket and the recorder. Without a socket, the recorder refuses all ranks, since none of them asks.

    Args:
        push_socket: The push socket or a file next to it, which determines the directory.
        processes: Returns the ranks of this machine.
        step_seconds: As for `Windows`; *ask* likewise.
        enabled: False for no socket.

    Attributes:
        recorder: The recorder.
    """

    def __init__(
        self,
        push_socket: Path,
        processes: Callable[[], Sequence[RankProcess]],
        step_seconds: Callable[[str, int], float | None],
        ask: AskRanks,
        *,
        enabled: bool,
    ) -> None:
        pollers, place = Pollers(), socket_directory(push_socket)
        self.recorder = KinetoRecorder(place, pollers, processes, Windows(pollers, step_seconds, ask))
        self._socket: ProfilerSocket | None = None
        if enabled:
            try:
                self._socket = ProfilerSocket(place, pollers)
            except DirectoryError as error:
                log.info("PyTorch's own profiler is not available: %s", error)

    def start(self) -> None:
        """Begin to answer."""
        if self._socket is not None:
            self._socket.start()

    def stop(self) -> None:
        """Remove the socket. You may call it without `start`, but once only."""
        if self._socket is not None:
            self._socket.stop()

    def batch(self) -> Batch:
        """Return the refused datagrams."""
        return Batch("captures:kineto", [] if self._socket is None else self._socket.samples(), complete=True)
