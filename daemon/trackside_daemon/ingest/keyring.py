"""The directory of keys that the daemon and ``trackside keys`` share: the daemon's identity, and the clients that may push.

::

    daemon.key              the daemon's secret and public half
    daemon-PORT.key         those at this port, such as an old key while clients change to the new one
    authorized/NAME.pub     the public half of a client that may push
    clients/NAME.key        the key of that client, until you move it to its machine
"""

import logging
import os
import re
import time
from contextlib import suppress
from pathlib import Path

from trackside.environment import keys
from trackside.environment.keys import KeyFileError
from trackside.log_once import LogOnce
from trackside.os_errors import os_error_text

KEY_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}", re.ASCII)

# A directory that changed so recently may change again without a new modification time.
SETTLED_NANOSECONDS = 2 * 10**9

_DAEMON = """\
# The key of a trackside daemon. SECRET: anyone who has it can pose as the daemon. It stays on the daemon's machine.
secret-key = "{secret}"
public-key = "{public}"
"""
_CLIENT = """\
# The key of the trackside client {name}. SECRET: anyone who has it can push as {name}.
# It belongs to the machine where the training runs, with TRACKSIDE_KEY_FILE naming it.
secret-key = "{secret}"
public-key = "{public}"
daemon-key = "{daemon}"
"""
_AUTHORIZED = """\
# The trackside client {name} may push while this file is in the directory authorized of the daemon's keys.
public-key = "{public}"
"""

log = logging.getLogger("trackside")


class Keyring:
    """The keys that the daemon reads. Clients that are added or removed later need no restart.

    Raises:
        KeyFileError: The daemon's key cannot be read.
    """

    def __init__(self, directory: Path) -> None:
        self.authorized = directory / "authorized"
        file = directory / "daemon.key"
        try:
            self.secret, self.public = keys.read(file, "secret-key", "public-key")
        except KeyFileError as error:
            remedy = f"uid {os.getuid()}, as whom the daemon runs, has to own {directory} and all in it"
            if isinstance(error.__cause__, FileNotFoundError):
                remedy = f"make it with: trackside keys {directory}"
            raise KeyFileError(f"{error}; {remedy}") from None
        self._allowed: dict[bytes, str] = {}
        self._read_at = 0
        self._logged = LogOnce()

    def secret_at(self, endpoint: str) -> bytes:
        """Return the daemon's secret key at ``tcp://HOST:PORT``.

        Raises:
            KeyFileError: The port has a key of its own, which cannot be read.
        """
        file = self.authorized.with_name(f"daemon-{endpoint.rpartition(':')[2]}.key")
        return keys.read(file, "secret-key", "public-key")[0] if os.path.lexists(file) else self.secret

    def name(self, public: bytes) -> str | None:
        """Return the name of a client, by its public key in Z85; None if it may not push."""
        try:
            changed_at = self.authorized.stat().st_mtime_ns
            if changed_at != self._read_at:
                self._allowed = self._read()
                self._read_at = changed_at if time.time_ns() - changed_at > SETTLED_NANOSECONDS else 0
        except OSError as error:
            self._allowed = {}  # nobody may push while the directory cannot be read
            self._read_at = 0
            self._warn_once(self.authorized, f"{self.authorized}: {os_error_text(error)}")
        return self._allowed.get(public)

    def _read(self) -> dict[bytes, str]:
        allowed: dict[bytes, str] = {}
        for file in sorted(self.authorized.glob("*.pub")):
            try:
                allowed[keys.read(file, "public-key")[0]] = file.stem
            except KeyFileError as error:
                self._warn_once(file, str(error))
        return allowed

    def _warn_once(self, file: Path, problem: str) -> None:
        if self._logged.first(file):
            log.warning("%s; no client can push with it", problem)


def make(directory: Path, clients: list[str]) -> list[Path]:
    """Make the daemon's key if there is none, and one for each of *clients*; no file is overwritten.

    Files that root makes belong to the owner of the directory, so that a daemon of that user can read them.

    Returns:
        The files that were made.

    Raises:
        KeyFileError: A name is invalid or has a key, or a file cannot be made. Then no file is made.
    """
    files = {
        name: (directory / "clients" / f"{name}.key", directory / "authorized" / f"{name}.pub") for name in clients
    }
    for name, both in files.items():
        if not KEY_NAME.fullmatch(name):
            raise KeyFileError(f"{name!r} cannot be a client's name: letters, digits, dots, dashes and underscores can")
        for file in both:
            if os.path.lexists(file):
                raise KeyFileError(f"{file} exists and is not overwritten; choose another name, or delete it first")
    require_curve()
    import zmq

    made: list[Path] = []
    try:
        _make_directories(directory)
        public = _daemon(directory / "daemon.key", made)
        for name, (private, authorized) in files.items():
            pair = dict(zip(("public", "secret"), map(bytes.decode, zmq.curve_keypair()), strict=True))
            _write(private, _CLIENT.format(name=name, daemon=public, **pair), made)
            _write(authorized, _AUTHORIZED.format(name=name, **pair), made)
    except (OSError, KeyFileError) as error:
        for file in made:
            with suppress(OSError):
                file.unlink()
        if isinstance(error, KeyFileError):
            raise
        raise KeyFileError(f"{error.filename or directory}: {os_error_text(error)}") from None
    return made


def require_curve() -> None:
    """Check that ZeroMQ can encrypt.

    Raises:
        KeyFileError: It cannot.
    """
    import zmq  # the daemon itself does not need it, but only its worker

    if not zmq.has("curve"):
        raise KeyFileError(
            "this pyzmq was built without CURVE encryption; install one that has it: pip install --force-reinstall pyzmq"
        )


def _make_directories(directory: Path) -> None:
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if (status := directory.stat()).st_mode & 0o022:
        raise KeyFileError(
            f"{directory}: other users may write there and so authorize themselves; run: chmod 700 {directory}"
        )
    for name in ("authorized", "clients"):
        with suppress(FileExistsError):
            (directory / name).mkdir(mode=0o700)
            if os.getuid() == 0:
                os.chown(directory / name, status.st_uid, status.st_gid)


def _daemon(file: Path, made: list[Path]) -> str:
    """Return the daemon's public key; make the key pair if there is none."""
    import zmq

    if not os.path.lexists(file):
        public, secret = map(bytes.decode, zmq.curve_keypair())
        _write(file, _DAEMON.format(public=public, secret=secret), made)
    return keys.read(file, "secret-key", "public-key")[1].decode()


def _write(file: Path, text: str, made: list[Path]) -> None:
    """Write a new file that only its owner can read: the owner of its directory."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(file, flags, 0o600), "w", encoding="ascii") as opened:
        made.append(file)
        if os.getuid() == 0:
            owner = file.parent.stat()
            os.fchown(opened.fileno(), owner.st_uid, owner.st_gid)
        opened.write(text)
