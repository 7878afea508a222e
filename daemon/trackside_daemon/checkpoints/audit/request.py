"""The requests of the daemon to the processes that read checkpoints, and their answers; a line of JSON each."""

from typing import NamedTuple

import msgspec

from trackside_daemon.model.checkpoint import CheckedFile

MODULE = "trackside_daemon.checkpoints.audit"
CHANGING = "it changed while it was read"  # an `Audited.unread` that is no result


class AuditRequest(msgspec.Struct, tag="audit"):
    """A checkpoint to audit.

    Attributes:
        path: Its path.
        bytes: The sum of the sizes of its files, as of the last scan.
        rate: Bytes to read per second at most; 0 for no limit.
        uid: The user whose files are read; None for all.
        values: Search safetensors for NaN and infinities.
        rewritten: The training has written it since the last audit, so that its content may differ.
        before: Its files as of the last audit.
        previous: Sizes of the files of the checkpoint before it, by name.
    """

    path: str
    bytes: int = 0
    rate: float = 0.0
    uid: int | None = None
    values: bool = False
    rewritten: bool = False
    before: tuple[CheckedFile, ...] = ()
    previous: dict[str, int] = {}


class Audited(msgspec.Struct):
    """The result of an audit.

    Attributes:
        format: The format.
        problem: Why the checkpoint is damaged, in one line; empty if it is intact.
        file: The damaged file.
        unread: Why it could not be read, in one line; empty if it was.
        gone: It does not exist.
        files: Its files with their checksums.
    """

    format: str = ""
    problem: str = ""
    file: str = ""
    unread: str = ""
    gone: bool = False
    files: tuple[CheckedFile, ...] = ()


class Entry(NamedTuple):
    """An entry of a directory: times in Unix nanoseconds."""

    name: str
    folder: bool
    bytes: int
    modified: int
    inode: int


class Listing(NamedTuple):
    """The files of a checkpoint, summed up.

    Attributes:
        fingerprint: A number that changes with names, sizes, times and inodes.
        bytes: The sum of the sizes.
        modified: The newest modification time, in Unix nanoseconds.
        format: The format by the files' names; empty if it is no checkpoint.
        declared: The file that its writer writes last is there.
    """

    fingerprint: int
    bytes: int
    modified: int
    format: str
    declared: bool


REFUSED = Listing(0, 0, 0, "", declared=False)


class ScanRequest(msgspec.Struct, tag="scan"):
    """Directories to list, and checkpoints whose files to sum up.

    Attributes:
        places: The directories.
        paths: The checkpoints.
        uid: The user whose files are listed; None for all.
    """

    places: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    uid: int | None = None


class Scanned(msgspec.Struct):
    """The entries of directories, the files of checkpoints, and the free bytes in directories.

    What cannot be read is absent. What does not exist is None, or of a directory an empty list. What belongs to another user
    is `REFUSED`, and is left out of the entries.
    """

    places: dict[str, list[Entry]] = {}
    paths: dict[str, Listing | None] = {}
    free: dict[str, int] = {}
