"""Find and lock the directory of the history, and recognize network file systems."""

import errno
import hashlib
import os
import re
import shlex
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from trackside.environment.paths import SYSTEM_DIRECTORY, state_directory
from trackside.os_errors import os_error_text
from trackside_daemon.linux.file_lock import FileLock, HeldError
from trackside_daemon.linux.mountinfo import parse

LOCK_FILE = "history.lock"
OPTION = "--storage.path"

_NETWORK = re.compile(
    r"9p|afs|beegfs|ceph|cifs|glusterfs|gpfs|lustre|ncpfs|nfs4?|orangefs|panfs|pvfs2|smb[23]|smbfs|wekafs"
    r"|fuse\.(alluxio-fuse|beegfs|blobfuse2?|ceph(fs|-fuse)?|curlftpfs|davfs|gcsfuse|glusterfs|goofys|juicefs|lizardfs|mfs"
    r"|mount-s3|mountpoint-s3|objectivefs|rclone|s3fs|s3ql|seaweedfs|sshfs|weed)"
)


class HistoryError(Exception):
    """The history cannot be used; the message is one line: why, and what to do."""


class UnreadableError(HistoryError):
    """The history cannot be read at the moment."""


class UnavailableError(HistoryError):
    """The disk does not take a history at the moment, but may do so later without a change of the configuration."""


class SalvagingError(UnavailableError):
    """The rows of a damaged history are being copied to a new one."""


# Of a disk that is full, beyond its quota, read-only or broken, and of a process that has too many files open.
_PASSING = frozenset(
    (
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EFBIG,
        errno.EROFS,
        errno.EIO,
        errno.ESTALE,
        errno.ENOMEM,
        errno.EMFILE,
        errno.ENFILE,
    )
)


def kind_of(error: OSError | ValueError) -> type[HistoryError]:
    """Return whether an error of a file may pass by itself."""
    return UnavailableError if getattr(error, "errno", None) in _PASSING else HistoryError


def default_directory(environ: Mapping[str, str], uid: int, etc: Path = Path("/etc")) -> Path:
    """Return the system's directory for root and for users who may write it, else the user's directory.

    Raises:
        HistoryError: The user has no home.
    """
    if uid == 0 or (SYSTEM_DIRECTORY.is_dir() and os.access(SYSTEM_DIRECTORY, os.W_OK | os.X_OK)):
        return SYSTEM_DIRECTORY
    try:
        return state_directory(environ, uid, etc)
    except LookupError as error:
        raise HistoryError(f"no directory for the history: {error}; name one with {OPTION}=DIR") from None


def copy_directory(history: Path) -> Path:
    """Return where this user's questions about a history keep what they wrote; see `trackside fleet`.

    Raises:
        LookupError: The user has no home.
    """
    of = hashlib.sha256(os.fsencode(history.resolve())).hexdigest()[:16]
    return state_directory(os.environ, os.getuid()) / "fleet" / of


def delete_copy(history: Path) -> Iterator[None]:
    """Delete `copy_directory` in small steps; links are not followed."""
    with suppress(LookupError, OSError):
        if not (copy := copy_directory(history)).is_symlink():
            for folder, *_ in os.walk(copy, topdown=False):
                shutil.rmtree(folder, ignore_errors=True)
                yield


def prepare(path: Path | None, environ: Mapping[str, str] = os.environ, uid: int | None = None) -> Path:
    """Return the directory of the history, ready for writing.

    Args:
        path: The directory that the user named, whose parent has to exist; None for the default one.
        environ: Environment that determines the default directory.
        uid: User id of this process.

    Raises:
        HistoryError: The directory cannot be made, is no directory, or may not be written.
    """
    if path is not None:
        return named_directory(path.absolute(), OPTION)
    return writable_directory(default_directory(environ, os.getuid() if uid is None else uid), OPTION, make=True)


def named_directory(path: Path, option: str) -> Path:
    """Return *path*, ready for writing; make the directory if its parent exists.

    Raises:
        HistoryError: The directory cannot be used.
    """
    return writable_directory(path, option, make=_is_makeable(path))


def check_named_directory(path: Path, option: str) -> None:
    """Check what `named_directory` needs, and make nothing.

    Raises:
        HistoryError: The directory could not be used.
    """
    writable_directory(path.parent if _is_makeable(path) else path, option)


def _is_makeable(path: Path) -> bool:
    return path.parent.is_dir() and not os.path.lexists(path)


def writable_directory(path: Path, option: str, *, make: bool = False) -> Path:
    """Return *path* if it is a directory that this process may write.

    Args:
        path: The directory.
        option: The flag that names another one.
        make: Create it with mode 0700 if it is missing, and its parents.

    Raises:
        HistoryError: The directory cannot be used.
    """
    shown = _shown(path)
    try:
        if make:
            make_private(path)
        status = path.stat()
    except FileNotFoundError:
        raise HistoryError(
            f"{shown}: no such directory; make it with mkdir -p {shlex.quote(shown)}, or name another with {option}=DIR"
        ) from None
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL
        raise kind_of(error)(f"{shown}: {os_error_text(error)}; name another directory with {option}=DIR") from error
    if not stat.S_ISDIR(status.st_mode):
        raise HistoryError(f"{shown} is not a directory; name one with {option}=DIR")
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        kind = UnavailableError if os.statvfs(path).f_flag & os.ST_RDONLY else HistoryError
        raise kind(f"{shown}: {_refusal(path, status)}, or name another directory with {option}=DIR")
    return path


def mode_warnings(path: Path) -> Iterator[str]:
    """Yield one line if others may write to the directory of the history, and so replace or delete it."""
    if path.stat().st_mode & 0o022:
        yield f"{_shown(path)}: others may write there, and so replace the history: chmod go-w {shlex.quote(_shown(path))}"


def lacks_room(directory: Path, least: int) -> bool:
    """Return whether the disk of a directory has fewer free bytes than storage.min-free leaves to others; False if it does not say."""
    with suppress(OSError):
        return bool(least) and shutil.disk_usage(directory).free < least
    return False


def make_private(path: Path) -> None:
    """Create a directory and its missing parents for this user alone (0700).

    Raises:
        OSError: A directory cannot be created.
    """
    for directory in (*reversed(path.parents), path):
        if not directory.is_dir():
            directory.mkdir(mode=0o700, exist_ok=True)


def create_private(path: Path) -> None:
    """Create a file for this user alone.

    Raises:
        OSError: It cannot be created, or exists.
    """
    # O_EXCL, so that the file belongs to this user alone from the first moment. Only a new file may be opened and closed
    # here: closing any descriptor of a file that SQLite has open drops SQLite's locks on it.
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600))


def _refusal(path: Path, status: os.stat_result) -> str:
    if os.statvfs(path).f_flag & os.ST_RDONLY:
        return "its file system is read-only; mount it for writing"
    owner = f"it belongs to uid {status.st_uid}, mode {stat.S_IMODE(status.st_mode):04o}"
    return f"uid {os.getuid()} may not write there ({owner}); grant it write access"


def _shown(path: Path) -> str:
    return str(path) if str(path).isprintable() else ascii(str(path))


def lock_history(directory: Path) -> FileLock:
    """Return the lock that keeps other daemons out of a history's directory.

    On a file system without locks the lock is not `supported`, and the database has to keep others out.

    Raises:
        HistoryError: Another daemon or a command holds the lock, or the lock file cannot be used.
    """
    path = directory / LOCK_FILE
    try:
        return FileLock(path, required=False)
    except HeldError as error:
        raise HistoryError(
            f"{_shown(directory)}: another trackside process writes its history there (pid {error}), a daemon or a command"
            f" such as import; wait for its end, or give this daemon another directory with {OPTION}=DIR"
        ) from None
    except OSError as error:
        raise kind_of(error)(
            f"{_shown(path)}: {os_error_text(error)}; make it a file that uid {os.getuid()} may write,"
            f" or name another directory with {OPTION}=DIR"
        ) from error


def network_file_system(path: Path, mountinfo: Path = Path("/proc/self/mountinfo")) -> str:
    """Return the type of the file system of *path*, such as ``nfs4``, if it is a network file system, else ``""``.

    Source: proc_pid_mountinfo(5).
    """
    try:
        lines = parse(mountinfo.read_bytes())
    except OSError:
        return ""
    target = f"{os.path.realpath(path)}/"
    mount, kind = "", ""
    for line in lines:
        point = line.point.rstrip("/")
        # Of two mounts on one point the later one counts.
        if len(point) >= len(mount) and target.startswith(f"{point}/"):
            mount, kind = point, line.fstype
    return kind if _NETWORK.fullmatch(kind) else ""
