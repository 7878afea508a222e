"""Authenticate TCP clients by their keys: ZeroMQ asks at each handshake (ZAP, RFC 27)."""

import logging
from pathlib import Path

import zmq
import zmq.auth
from zmq.utils import z85

from trackside.log_once import LogOnce
from trackside_daemon.ingest.keyring import Keyring, require_curve
from trackside_daemon.ingest.worker_channel import Channel, RecordKind

DOMAIN = "trackside"
LOGGED = 1000  # number of sources that are remembered, so that each is logged once; later ones are only counted

log = logging.getLogger("trackside")


class _LogHandler(logging.Handler):
    """Sends warnings to the daemon, which writes the log."""

    def __init__(self, channel: Channel) -> None:
        super().__init__()
        self._channel = channel

    def emit(self, record: logging.LogRecord) -> None:
        """Send a warning."""
        self._channel.add(RecordKind.LOG, [record.getMessage().encode(errors="replace")])


class _Handler(zmq.auth.Authenticator):
    """Answers ZeroMQ's questions; each message of a connection then has the name of its key as its ``User-Id``."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], keyring: Keyring) -> None:
        super().__init__(context)
        self._keyring = keyring

    def curve_user_id(self, client_public_key: bytes) -> str:
        """Return the name of a key that was accepted."""
        return self._keyring.name(z85.encode(client_public_key)) or ""


class Authenticator:
    """Answers ZeroMQ's questions about the clients at the endpoints that it guards. It has to exist before they are bound.

    Args:
        context: The context of the socket.
        keys: The directory of keys.
        channel: Gets a record of each handshake that is refused: with an unknown key, with the key of another daemon, or
            without a key. Of the last two kinds, clients that disconnect before their handshake is read are not counted.

    Attributes:
        EVENTS: The events of the socket's monitor that `handshake_failed` needs: ZeroMQ's questions have only keys, so that
            it asks none about handshakes that end before a key is shown.
        socket: Readable when `answer` is due.

    Raises:
        KeyFileError: The daemon's key cannot be read, or ZeroMQ cannot encrypt.
    """

    EVENTS = zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], keys: str, channel: Channel) -> None:
        require_curve()
        log.addHandler(_LogHandler(channel))
        self._keyring = Keyring(Path(keys))
        self._channel = channel
        self._source = ""
        self._logged = LogOnce(LOGGED)
        self._handler = _Handler(context, self._keyring)
        self._handler.configure_curve_callback(DOMAIN, self)
        self._handler.start()
        self.socket = self._handler.zap_socket

    def guard(self, socket: zmq.Socket[bytes], endpoint: str) -> None:
        """Require a key at the endpoint, which the socket binds next.

        Raises:
            KeyFileError: The daemon's key at this port cannot be read.
        """
        socket.curve_server = True
        socket.curve_secretkey = self._keyring.secret_at(endpoint)
        socket.setsockopt_string(zmq.ZAP_DOMAIN, DOMAIN)
        # Without this, ZeroMQ admits every client while no handler runs.
        socket.zap_enforce_domain = True

    def callback(self, _domain: str, key: bytes) -> bool:
        """Return whether a client with this public key, in Z85, may connect; pyzmq calls it by this name."""
        allowed = self._keyring.name(key) is not None
        if not allowed:
            self._refuse(self._source, f"its key is not in {self._keyring.authorized}")
        return allowed

    def handshake_failed(self, endpoint: str) -> None:
        """Count a handshake that broke the protocol."""
        if endpoint.startswith("tcp://"):
            self._refuse(endpoint, "it has no key, or one for another daemon; see TRACKSIDE_KEY_FILE")

    def answer(self) -> None:
        """Answer one question."""
        request = self.socket.recv_multipart()
        self._source = request[3].decode(errors="replace") if len(request) > 3 else ""
        answering = self._handler.handle_zap_message(request)
        try:
            answering.send(None)  # `callback` does not wait, so one step answers the request
        except StopIteration:
            return
        answering.close()

    def close(self) -> None:
        """Close the socket."""
        self._handler.stop()

    def _refuse(self, source: str, reason: str) -> None:
        self._channel.add(RecordKind.REFUSED, [b"key"])
        if self._logged.first(source):
            log.warning("a client at %s was refused: %s; further ones from there are only counted", source, reason)
