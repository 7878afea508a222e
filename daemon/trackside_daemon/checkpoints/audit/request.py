"""The requests of the daemon to the processes that read checkpoints, and their answers; a line of JSON each."""

from typing import NamedTuple

import msgspec

from trackside_daemon.model.checkpoint import CheckedFile

MODULE = "trackside_daemon.checkpoints.audit"
CHANGING = "it changed while it was read"  # an `Audited.unread` that is no result


class AuditRequest(msgspec.Struct, tag="audit"):
    """A checkpoint to audit."""

    path: str
    bytes: int = 0  # the sum of the sizes of its files, as of the last scan
    rate: float = 0.0  # bytes to read per second at most; 0 for no limit
    uid: int | None = None  # the user whose files are read; None for all
    values: bool = False  # search safetensors for NaN and infinities
    rewritten: bool = False  # the training has written it since the last audit, so that its content may differ
    before: tuple[CheckedFile, ...] = ()  # its files as of the last audit
    previous: dict[str, int] = {}  # sizes of the files of the checkpoint before it, by name


class Audited(msgspec.Struct):
    """The result of an audit."""

    format: str = ""
    problem: str = ""  # why the checkpoint is damaged, in one line; empty if it is intact
    file: str = ""  # the damaged file
    unread: str = ""  # why it could not be read, in one line; empty if it was
    gone: bool = False  # it does not exist
    files: tuple[CheckedFile, ...] = ()  # its files with their checksums


class Entry(NamedTuple):
    """An entry of a directory: times in Unix nanoseconds."""

    name: str
    folder: bool
    bytes: int
    modified: int
    inode: int


class Listing(NamedTuple):
    """The files of a checkpoint, summed up."""

    fingerprint: int  # a number that changes with names, sizes, times and inodes
    bytes: int  # the sum of the sizes
    modified: int  # the newest modification time, in Unix nanoseconds
    format: str  # the format by the files' names; empty if it is no checkpoint
    declared: bool  # the file that its writer writes last is there


REFUSED = Listing(0, 0, 0, "", declared=False)


class ScanRequest(msgspec.Struct, tag="scan"):
    """Directories to list, and checkpoints whose files to sum up."""

    places: tuple[str, ...] = ()  # the directories
    paths: tuple[str, ...] = ()  # the checkpoints
    uid: int | None = None  # the user whose files are listed; None for all


class Scanned(msgspec.Struct):
    """The entries of directories, the files of checkpoints, and the free bytes in directories.

    What cannot be read is absent. What does not exist is None, or of a directory an empty list. What belongs to another user
    is `REFUSED`, and is left out of the entries.
    """

    places: dict[str, list[Entry]] = {}
    paths: dict[str, Listing | None] = {}
    free: dict[str, int] = {}
