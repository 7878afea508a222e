"""The thread that says which clients of other machines may speak: ZeroMQ asks it at each handshake (ZAP, RFC 27)."""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING

import zmq
import zmq.auth
from zmq.utils.monitor import recv_monitor_message

if TYPE_CHECKING:
    from trackside_daemon.ingest.keyring import Keyring

DOMAIN = "trackside"
TOLD = 1000
"""How many sources are remembered, so that each is logged once; refusals of later ones are only counted."""

log = logging.getLogger("trackside")


class Authenticator:
    """Has to be there before a socket that it guards is bound; when its thread has ended, nobody gets through any more.

    Args:
        socket: What clients connect to.
        keyring: Who may.

    Attributes:
        rejected: Handshakes refused: with an unknown key, with the key of another daemon, or without one. Of the latter
            two, those of clients that hang up before what is wrong has been read are missing.
    """

    def __init__(self, socket: zmq.Socket[bytes], keyring: Keyring) -> None:
        self.rejected = 0
        self._socket = socket
        self._keyring = keyring
        self._source = ""
        self._told: set[str] = set()
        self._zap = zmq.auth.Authenticator(socket.context)
        self._zap.configure_curve_callback(DOMAIN, self)
        self._zap.start()
        # Asked about keys only, the handler above never hears of handshakes that end before a key is shown.
        self._failures = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL)
        self._wakes, self._waker = os.pipe()
        self._thread = threading.Thread(target=self._run, name="trackside-authenticator", daemon=True)
        self._thread.start()

    def guard(self) -> None:
        """What the socket binds from now on takes clients with a key only.

        Without *zap_enforce_domain*, ZeroMQ lets everybody in while nobody is there to be asked.
        """
        self._socket.curve_server = True
        self._socket.curve_secretkey = self._keyring.secret
        self._socket.setsockopt_string(zmq.ZAP_DOMAIN, DOMAIN)
        self._socket.zap_enforce_domain = True

    def callback(self, _domain: str, key: bytes) -> bool:
        """Whether a client with this public key, in Z85, may speak; pyzmq's name for it."""
        allowed = self._keyring.allows(key)
        if not allowed:
            self._reject(self._source, f"its key is not in {self._keyring.authorized}")
        return allowed

    def stop(self) -> None:
        """End the thread. The socket has to be closed before its context is."""
        os.write(self._waker, b"\0")
        self._thread.join()
        self._socket.disable_monitor()
        self._failures.close()
        self._zap.stop()
        os.close(self._wakes)
        os.close(self._waker)

    def _run(self) -> None:
        poller = zmq.Poller()
        for one in (self._wakes, self._zap.zap_socket, self._failures):
            poller.register(one, zmq.POLLIN)
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
            answering.send(None)  # `callback` waits for nothing, so it is answered within one step
        except StopIteration:
            return
        answering.close()

    def _reject(self, source: str, reason: str) -> None:
        self.rejected += 1
        if source not in self._told and len(self._told) < TOLD:
            self._told.add(source)
            log.warning("a client at %s was refused: %s; further ones there are only counted", source, reason)
