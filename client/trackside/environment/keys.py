"""Read the key file that lets a training push to a daemon on another machine with CURVE, ZeroMQ's encryption."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from trackside.environment.paths import open_regular
from trackside.os_errors import os_error_text
from trackside.patterns import pattern

if TYPE_CHECKING:
    from collections.abc import Mapping

    import zmq

VARIABLE = "TRACKSIDE_KEY_FILE"
FILE_BYTES = 4096  # limit of bytes that are read, whatever file is named; a key file is smaller

_LOOPBACK = pattern(r"tcp://(?:localhost|127(?:\.\d{1,3}){3}|\[::1\]):(?:\d{1,5}|\*)", re.ASCII)

# A line of a key file, with a key in Z85, https://rfc.zeromq.org/spec/32/.
_LINE = pattern(r'([a-z]+-key)\s*=\s*"([0-9a-zA-Z.:+=^!/*?&<>()\[\]{}@%$#-]{40})"')


class KeyFileError(Exception):
    """No key is available. The message states why and what to do, and never the contents of a file."""


class ClientKey(NamedTuple):
    """The keys of a client."""

    file: Path  # path of the key file
    secret: bytes  # the client's secret key, which never leaves this machine
    public: bytes  # the client's public key, by which the daemon identifies it
    daemon: bytes  # the daemon's public key, by which the client identifies the daemon

    def __repr__(self) -> str:
        return f"ClientKey({str(self.file)!r})"  # the secret must not get into a log or an error

    def lock(self, socket: zmq.Socket[bytes]) -> None:
        """Encrypt the connections that *socket* opens from now on."""
        socket.curve_secretkey, socket.curve_publickey = self.secret, self.public
        socket.curve_serverkey = self.daemon


def for_endpoint(endpoint: str, environ: Mapping[str, str]) -> ClientKey | None:
    """Return the key for an endpoint; None for a Unix socket, and for this machine if no key file is named.

    Raises:
        KeyFileError: The file that ``$TRACKSIDE_KEY_FILE`` names cannot be used, or none is named and one is needed.
    """
    if not endpoint.startswith("tcp://"):
        return None
    if not environ.get(VARIABLE):
        if is_loopback(endpoint):
            return None
        raise KeyFileError(
            "pushing to another machine needs a key: create one with `trackside keys` on the daemon's machine, copy its"
            f" file here, and name it in ${VARIABLE}"
        )
    file = Path(environ[VARIABLE])
    return ClientKey(file, *read(file, "secret-key", "public-key", "daemon-key"))


def is_loopback(endpoint: str) -> bool:
    """Return whether an endpoint is ``tcp://HOST:PORT`` with a loopback address."""
    return _LOOPBACK.fullmatch(endpoint) is not None


def read(file: Path, *names: str) -> list[bytes]:
    """Return the keys of these *names* from a key file, in Z85.

    Raises:
        KeyFileError: The file cannot be read, has a secret that others may read, or lacks a key.
    """
    try:
        text = _text(file, secret="secret-key" in names)
    except (OSError, ValueError) as error:  # a path with a NUL byte
        raise KeyFileError(f"{file}: {os_error_text(error)}") from error
    lines = (_LINE.fullmatch(line.strip()) for line in text.splitlines())
    keys = {line[1]: line[2] for line in lines if line is not None}
    missing = [name for name in names if name not in keys]
    if missing:
        raise KeyFileError(f"{file}: not a key file for this: it has no {missing[0]}; `trackside keys` creates them")
    # ZeroMQ would only repeat its handshake for ever, without an error.
    if "secret-key" in names and _public(keys["secret-key"]) != keys["public-key"].encode():
        raise KeyFileError(f"{file}: its secret-key and its public-key do not belong together; copy the file again")
    return [keys[name].encode() for name in names]


def _text(file: Path, *, secret: bool) -> str:
    with open_regular(file, links=True) as opened:
        status = os.fstat(opened.fileno())
        # As in PostgreSQL: a group may read a file that root owns, as with Kubernetes' secrets.
        if secret and status.st_mode & (0o037 if status.st_uid == 0 else 0o077):
            raise ValueError(f"others may read it, and it is secret: chmod 600 {file}")
        return opened.read(FILE_BYTES).decode(errors="replace")


def _public(secret: str) -> bytes | None:
    """Return the public half of a secret key; None if it is not a key."""
    import zmq  # commands that only look for a daemon do not need it, and it costs them 20 ms

    try:
        return zmq.curve_public(secret.encode())
    except zmq.ZMQError:
        return None
