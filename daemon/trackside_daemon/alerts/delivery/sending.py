"""Sending of one message in a thread of its own, because a sink that does not return cannot be stopped."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from trackside_daemon.http_client.errors import SendError

if TYPE_CHECKING:
    from trackside_daemon.alerts.sinks.sink import Message, Sink

SEND_SECONDS = 60.0  # seconds after which a sink that has not returned is abandoned; the message is retried
HANGING = 2  # most messages of a sink in flight at once; until one of them ends, no further one is sent


class SendThread(threading.Thread):
    """Thread that sends one message.

    Attributes:
        error: Error of the sink; None if the message was sent.
    """

    def __init__(self, sink: Sink, message: Message) -> None:
        super().__init__(name=f"trackside-send-{sink.name}", daemon=True)
        self._sink, self._message = sink, message
        self.error: SendError | None = None

    def run(self) -> None:
        """Send the message."""
        try:
            self._sink.send(self._message)
        except SendError as error:
            self.error = error
        except BaseException as error:  # noqa: BLE001  a fault of the sink must not spread; its text may hold a secret
            fault = type(error).__name__
            self.error = SendError(f"the message cannot be sent, and is given up: {fault}", "never")


class Channel:
    """Messages in flight of a sink and of its successors of the same name, which are new objects after each reload."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._in_flight: list[SendThread] = []

    def send(self, sink: Sink, message: Message) -> SendError | None:
        """Send a message; block for `SEND_SECONDS` at most.

        Returns:
            The error; None if the message was sent.
        """
        thread = SendThread(sink, message)
        with self._lock:
            self._in_flight = [other for other in self._in_flight if other.is_alive()]
            if len(self._in_flight) >= HANGING:
                return SendError(
                    f"{HANGING} messages hang in the sink; if they do not end, restart the daemon", "later"
                )
            try:
                thread.start()
            # The limit of threads or of memory is reached.
            except RuntimeError:
                return SendError("no thread can be started for the message; raise the limit of threads")
            self._in_flight.append(thread)
        thread.join(SEND_SECONDS)
        if not thread.is_alive():
            return thread.error
        return SendError(f"the message was not accepted within {SEND_SECONDS:g} s; retrying")
