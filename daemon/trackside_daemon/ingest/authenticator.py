"""The thread that authenticates TCP clients by their keys: ZeroMQ asks it at each handshake (ZAP, RFC 27)."""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING

import zmq
import zmq.auth
from zmq.utils import z85
from zmq.utils.monitor import recv_monitor_message

if TYPE_CHECKING:
    from trackside_daemon.ingest.keyring import Keyring

DOMAIN = "trackside"
LOGGED = 1000  # number of sources that are remembered, so that each is logged once; later ones are only counted

log = logging.getLogger("trackside")


class _Handler(zmq.auth.Authenticator):
    """Answers ZeroMQ's questions; each message of a connection then has the name of its key as its ``User-Id``."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], keyring: Keyring) -> None:
        super().__init__(context)
        self._keyring = keyring

    def curve_user_id(self, client_public_key: bytes) -> str:
        """Return the name of a key that was accepted."""
        return self._keyring.name(z85.encode(client_public_key)) or ""


class Authenticator:
    """Guards a socket. It must exist before the socket is bound; after its thread has ended, no client can connect.

    Args:
        socket: The socket.
        keyring: The authorized keys.

    Attributes:
        rejected: Handshakes that were refused: with an unknown key, with the key of another daemon, or without a key. Of the
            last two kinds, clients that disconnect before their handshake is read are not counted.
    """

    def __init__(self, socket: zmq.Socket[bytes], keyring: Keyring) -> None:
        self.rejected = 0
        self._socket = socket
        self._keyring = keyring
        self._source = ""
        self._logged: set[str] = set()
        self._zap = _Handler(socket.context, keyring)
        self._zap.configure_curve_callback(DOMAIN, self)
        self._zap.start()
        # The handler above gets only keys, so not the handshakes that end before a key is shown.
        self._failures = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL)
        self._wakes, self._waker = os.pipe()
        self._thread = threading.Thread(target=self._run, name="trackside-authenticator", daemon=True)
        self._thread.start()

    def guard(self) -> None:
        """Require a key at all endpoints that the socket binds from now on."""
        self._socket.curve_server = True
        self._socket.curve_secretkey = self._keyring.secret
        self._socket.setsockopt_string(zmq.ZAP_DOMAIN, DOMAIN)
        # Without this, ZeroMQ admits every client while no handler runs.
        self._socket.zap_enforce_domain = True

    def callback(self, _domain: str, key: bytes) -> bool:
        """Return whether a client with this public key, in Z85, may connect; pyzmq calls it by this name."""
        allowed = self._keyring.name(key) is not None
        if not allowed:
            self._reject(self._source, f"its key is not in {self._keyring.authorized}")
        return allowed

    def stop(self) -> None:
        """End the thread. The socket must be closed before its context."""
        os.write(self._waker, b"\0")
        self._thread.join()  # first: only one thread at a time may use a socket of ZeroMQ
        self._socket.disable_monitor()
        self._failures.close()
        self._zap.stop()
        os.close(self._wakes)
        os.close(self._waker)

    def _run(self) -> None:
        poller = zmq.Poller()
        for source in (self._wakes, self._zap.zap_socket, self._failures):
            poller.register(source, zmq.POLLIN)
        while self._wakes not in (ready := dict(poller.poll())):
            if self._zap.zap_socket in ready:
                self._authenticate(self._zap.zap_socket.recv_multipart())
            if self._failures in ready:
                endpoint = recv_monitor_message(self._failures)["endpoint"].decode()
                if endpoint.startswith("tcp://"):
                    self._reject(endpoint, "it has no key, or one for another daemon; see TRACKSIDE_KEY_FILE")

    def _authenticate(self, request: list[bytes]) -> None:
        self._source = request[3].decode(errors="replace") if len(request) > 3 else ""
        answering = self._zap.handle_zap_message(request)
        try:
            answering.send(None)  # `callback` does not wait, so one step answers the request
        except StopIteration:
            return
        answering.close()

    def _reject(self, source: str, reason: str) -> None:
        self.rejected += 1
        if source not in self._logged and len(self._logged) < LOGGED:
            self._logged.add(source)
            log.warning("a client at %s was refused: %s; further ones from there are only counted", source, reason)
