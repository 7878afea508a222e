"""The key file by which a training may push to a daemon on another machine: CURVE, ZeroMQ's encryption."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import zmq

from trackside.transport.paths import open_regular

if TYPE_CHECKING:
    from collections.abc import Mapping

VARIABLE = "TRACKSIDE_KEY_FILE"
FILE_BYTES = 4096
"""More than any key file has; no more is read, whatever is named."""

_LOOPBACK = re.compile(r"tcp://(?:localhost|127(?:\.\d{1,3}){3}|\[::1\]):(?:\d{1,5}|\*)", re.ASCII)
_LINE = re.compile(r'([a-z]+-key)\s*=\s*"([0-9a-zA-Z.:+=^!/*?&<>()\[\]{}@%$#-]{40})"')
"""A key is written in Z85, https://rfc.zeromq.org/spec/32/."""


class KeyFileError(Exception):
    """There is no key to be had; the message says why and what to do, and never what is in a file."""


@dataclass(frozen=True)
class ClientKey:
    """What a key file of a client says.

    Attributes:
        file: Its path.
        secret: The client's own half, which never leaves this machine.
        public: The half that the daemon knows it by.
        daemon: The daemon's public half, by which it is known to be the right one.
    """

    file: Path
    secret: bytes = field(repr=False)
    public: bytes
    daemon: bytes

    def lock(self, socket: zmq.Socket[bytes]) -> None:
        """Encrypt what *socket* connects to from now on."""
        socket.curve_secretkey, socket.curve_publickey = self.secret, self.public
        socket.curve_serverkey = self.daemon


def for_endpoint(endpoint: str, environ: Mapping[str, str]) -> ClientKey | None:
    """The key to connect with, or None where none is needed: at a Unix socket, or on this machine without a key file.

    Raises:
        KeyFileError: The file that ``$TRACKSIDE_KEY_FILE`` names is no use, or none is named and one is needed.
    """
    if not endpoint.startswith("tcp://"):
        return None
    if not environ.get(VARIABLE):
        if is_loopback(endpoint):
            return None
        raise KeyFileError(
            "other machines are pushed to with a key only: make one with `trackside keys` where the daemon is, bring its"
            f" file here, and name it in ${VARIABLE}"
        )
    file = Path(environ[VARIABLE])
    found = read(file, "secret-key", "public-key", "daemon-key")
    return ClientKey(file, *found)


def is_loopback(endpoint: str) -> bool:
    """Whether it is ``tcp://HOST:PORT`` with an address that never leaves this machine."""
    return _LOOPBACK.fullmatch(endpoint) is not None


def read(file: Path, *names: str) -> list[bytes]:
    """The keys of these *names*, in Z85, of a key file.

    Raises:
        KeyFileError: It cannot be read, may be read by others though it has a secret, or has not these keys.
    """
    try:
        text = _text(file, secret="secret-key" in names)
    except (OSError, ValueError) as error:  # a path with a NUL byte
        raise KeyFileError(f"{file}: {(getattr(error, 'strerror', None) or str(error)).lower()}") from error
    lines = (_LINE.fullmatch(line.strip()) for line in text.splitlines())
    keys = {line[1]: line[2] for line in lines if line is not None}
    missing = [name for name in names if name not in keys]
    if missing:
        raise KeyFileError(f"{file}: is no key file for this, as it has no {missing[0]}; `trackside keys` makes them")
    if "secret-key" in names and _public(keys["secret-key"]) != keys["public-key"].encode():
        raise KeyFileError(f"{file}: its secret-key and its public-key do not belong together; copy the file again")
    return [keys[name].encode() for name in names]


def _text(file: Path, *, secret: bool) -> str:
    with open_regular(file, links=True) as opened:
        status = os.fstat(opened.fileno())
        # As PostgreSQL has it: one that root owns may be lent to a group, as Kubernetes does with its secrets.
        if secret and status.st_mode & (0o037 if status.st_uid == 0 else 0o077):
            raise ValueError(f"others may read it, and it is secret: chmod 600 {file}")
        return opened.read(FILE_BYTES).decode(errors="replace")


def _public(secret: str) -> bytes | None:
    """The public half of a secret key; None of what is none."""
    try:
        return zmq.curve_public(secret.encode())
    except zmq.ZMQError:
        return None
