"""One message on its way: in a thread of its own, since nobody can end a sink that does not return."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from trackside_daemon.alerts.sinks.sink import SendError

if TYPE_CHECKING:
    from trackside_daemon.alerts.sinks.sink import Message, Sink

SEND_SECONDS = 60.0
"""A sink that has not returned by then is left alone, and the message is tried again."""

HANGING = 2
"""So many messages of a sink may be on their way at once; before one of them ends no further one is begun."""


class Sending(threading.Thread):
    """Gives a sink a message.

    Attributes:
        problem: Why the sink did not take it; None when it did.
    """

    def __init__(self, sink: Sink, message: Message) -> None:
        super().__init__(name=f"trackside-send-{sink.name}", daemon=True)
        self._sink, self._message = sink, message
        self.problem: SendError | None = None

    def run(self) -> None:
        """In its own thread."""
        try:
            self._sink.send(self._message)
        except SendError as error:
            self.problem = error
        except BaseException as error:  # noqa: BLE001  a sink's fault is its own; its words may hold a secret
            fault = type(error).__name__
            self.problem = SendError(f"the message cannot be sent, and is given up: {fault}", "never")


class Line:
    """What is on its way to a sink and to its successors of the same name, which are others after each reload."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._under_way: list[Sending] = []

    def send(self, sink: Sink, message: Message) -> SendError | None:
        """Give the sink a message; takes `SEND_SECONDS` at most.

        Returns:
            Why it did not take it; None when it did.
        """
        sending = Sending(sink, message)
        with self._lock:
            self._under_way = [one for one in self._under_way if one.is_alive()]
            if len(self._under_way) >= HANGING:
                return SendError(f"{HANGING} messages hang in it; restart the daemon if they go on to", "later")
            try:
                sending.start()
            except RuntimeError:
                return SendError("no thread can be started for the message; raise the limit of threads")
            self._under_way.append(sending)
        sending.join(SEND_SECONDS)
        if not sending.is_alive():
            return sending.problem
        return SendError(f"the message was not taken within {SEND_SECONDS:g} s, and is tried again")
