"""Audit one checkpoint: everything that can be seen from outside."""

import errno
import io
import zipfile
import zlib
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import IO

import msgspec

from trackside.os_errors import os_error_text
from trackside_daemon.checkpoints.audit import files
from trackside_daemon.checkpoints.audit.files import (
    PIECE,
    UNPACKED,
    CheckpointFile,
    DamageError,
    FileReader,
    RefusedError,
)
from trackside_daemon.checkpoints.audit.request import CHANGING, Audited, AuditRequest
from trackside_daemon.model.checkpoint import CheckedFile

HEADER_BYTES = 100_000_000  # the most that the library accepts
BITS = {"BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "F16": 16, "BF16": 16, "U32": 32, "I32": 32, "F32": 32}
BITS |= {"U64": 64, "I64": 64, "F64": 64, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F4": 4, "C64": 64}


Tensor = tuple[str, int, int]
"""Type of a tensor's elements, and begin and end of its data in the file."""
_BEGIN, _END = b"PK\x03\x04", b"PK\x05\x06"
_END_BYTES = 22  # of the end of an archive without a comment, as PyTorch writes it
PLAUSIBLE = 0.5  # a file that nothing else vouches for has at least this share of the size that it had before
PICKLE, STOP = b"\x80", b"."  # first byte of a pickle, and its last
_ARCHIVED = frozenset((".pt", ".pth", ".ckpt"))  # torch.save writes archives, and before PyTorch 1.6 a pickle and data
_ZIPPED = (files.SUFFIXES | {".zip"}) - {".safetensors"}
_PICKLED = _ARCHIVED | {".pkl"}
ZEROS = bytes(4096)


def tensors(file: IO[bytes], size: int) -> dict[str, Tensor]:
    """Return the tensors of a file by name, after comparing its header with its size.

    Raises:
        DamageError: They do not agree.
    """
    file.seek(0)
    length = int.from_bytes(file.read(8), "little")
    if not 2 <= length <= min(HEADER_BYTES, size - 8):
        raise DamageError(f"the length of its header, {length:,} bytes, is impossible")
    try:
        header = _decode(file.read(length))
        header.pop("__metadata__", None)
        found = {name: _tensor(_decode_tensor(about), 8 + length) for name, about in header.items()}
    except (ValueError, OverflowError, RecursionError):  # msgspec's errors are values
        raise DamageError("its header is damaged") from None
    position = 8 + length
    for name, (_, begin, end) in sorted(found.items(), key=lambda item: item[1][1:]):
        if begin != position or end < begin:
            raise DamageError(f"its header is damaged: {name[:80]} does not begin where the tensor before ends")
        position = end
    if position != size:
        raise DamageError(f"it has {size:,} bytes, and its header describes {position:,}")
    return found


class _About(msgspec.Struct, gc=False):
    """A tensor in the header. Its types refuse other content before that takes memory."""

    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_tensor = msgspec.json.Decoder(_About).decode


def _tensor(about: _About, base: int) -> Tensor:
    begin, end = about.data_offsets
    bits = BITS.get(about.dtype)
    if bits is not None and prod(about.shape) * bits != (end - begin) * 8:
        raise ValueError("shape and offsets disagree")
    return about.dtype, base + begin, base + end


def nonfinite(file: IO[bytes], found: dict[str, Tensor], reader: FileReader) -> str:
    """Return the name of the first tensor with NaN or an infinity; empty if there is none."""
    for name, (kind, begin, end) in found.items():
        check = _CHECKS.get(kind)
        if check is not None and any(check(piece) for piece in reader.pieces(file, begin, end)):
            return name
    return ""


def _marks(*bytes_: int) -> bytes:
    """Return a table for `bytes.translate`, with 1 for these bytes and 0 for the others."""
    return bytes(number in bytes_ for number in range(256))


# Of a NaN and an infinity all bits of the exponent are set. Its upper bits alone are so only of very large numbers, which
# are checked one by one. Pieces begin at an element, since their length is a multiple of 8.
_TOP = _marks(0x7F, 0xFF)


def _search(width: int, rest: int) -> Callable[[bytes], bool]:
    """Return a check of numbers of *width* bytes; *rest* are the bits of the exponent in the second highest byte."""

    def check(piece: bytes) -> bool:
        high = piece[width - 1 :: width].translate(_TOP)
        place = high.find(1)
        while place >= 0:
            if piece[place * width + width - 2] & rest == rest:
                return True
            place = high.find(1, place + 1)
        return False

    return check


_HALF = _marks(*(number for number in range(256) if number & 0x7C == 0x7C))
_CHECKS: dict[str, Callable[[bytes], bool]] = {
    "BF16": _search(2, 0x80),
    "F32": _search(4, 0x80),
    "F64": _search(8, 0xF0),
    "F16": lambda piece: piece[1::2].translate(_HALF).find(1) >= 0,
    "F8_E5M2": lambda piece: piece.translate(_HALF).find(1) >= 0,
    "F8_E4M3": lambda piece: piece.translate(_TOP).find(1) >= 0,
}


def has_archives(head: bytes, file: IO[bytes], size: int) -> bool:
    """Return whether a file, whose *head* has been read, begins or ends as an archive."""
    return head.startswith(_BEGIN) or _ends_at(file, size)


def read_archives(file: IO[bytes], size: int, reader: FileReader) -> int | None:
    """Read all archives of a file, compare the CRC of each member, and return a checksum of all of them.

    None if they have no CRCs, since ``torch.serialization.set_crc32_options(False)`` was set.

    Raises:
        DamageError: An archive or a member is damaged.
        RefusedError: Its members would unpack to more than `UNPACKED` times its size.
    """
    end, total, counted, unpacked = size, 0, 0, 0
    while end > 0:  # the directory of an archive is at its end
        if not _ends_at(file, end):
            raise DamageError("it ends within an archive" if end == size else f"no archive ends at byte {end:,}")
        try:
            with zipfile.ZipFile(_Head(file, end)) as archive:
                members = archive.infolist()
                if not members:
                    raise DamageError(f"the archive that ends at byte {end:,} is empty")
                counted += sum(member.CRC != 0 for member in members)
                unpacked += sum(member.file_size for member in members)
                if unpacked > UNPACKED * size:
                    raise RefusedError(f"its members unpack to more than {UNPACKED} times its size")
                if any(member.CRC for member in members):
                    for member in members:
                        _read(archive, member, file, reader)
                begin = min(member.header_offset for member in members)
                if begin >= end:
                    raise DamageError(f"the archive that ends at byte {end:,} begins behind that")
                end = begin
                total = zlib.crc32(repr([(one.filename, one.CRC, one.file_size) for one in members]).encode(), total)
        except (zipfile.BadZipFile, zlib.error, RuntimeError, EOFError, ValueError) as error:
            raise DamageError(f"in the archive that ends at byte {end:,}: {str(error)[:200]}") from None
    return total if counted else None


def _ends_at(file: IO[bytes], end: int) -> bool:
    file.seek(max(0, end - _END_BYTES))
    return file.read(len(_END)) == _END


def _read(archive: zipfile.ZipFile, member: zipfile.ZipInfo, file: IO[bytes], reader: FileReader) -> None:
    """Read a member; `zipfile` compares its name and its CRC."""
    with archive.open(member) as opened:
        position = member.header_offset
        while piece := opened.read(PIECE):
            position += len(piece)
            reader.pace(file, position, len(piece))


class _Head(io.RawIOBase):
    """A file as if it ended at a position."""

    def __init__(self, file: IO[bytes], end: int) -> None:
        self._file, self._end, self._position = file, end, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._end}[whence]
        if base + offset < 0:
            raise OSError("before the begin of the file")
        self._position = base + offset
        return self._position

    def read(self, size: int = -1) -> bytes:
        left = max(0, self._end - self._position)
        self._file.seek(self._position)
        data = self._file.read(left if size is None or size < 0 else min(size, left))
        self._position += len(data)
        return data


def audit(request: AuditRequest) -> Audited:
    """Read a checkpoint, and compare it with what is known about it."""
    path = Path(request.path)
    reader = FileReader(request.rate, request.uid)
    try:
        found = files.listing(path, request.uid)
    except FileNotFoundError:
        return Audited(gone=True)
    except (OSError, ValueError) as error:
        return Audited(unread=_reason(error))
    answer = Audited(format=files.format_of(found) or "files", problem="" if found else "it has no files")
    before = {file.name: file for file in request.before}
    checked = []
    for file in found:
        try:
            with reader.open(files.base_of(path) / file.name) as opened:
                checked.append(_check(opened, file, reader, request, before.get(file.name)))
        except DamageError as damage:
            answer.file, answer.problem = file.name, f"{file.name}: {damage}"
            break
        except (OSError, MemoryError) as error:
            answer.unread = _reason(error)
            if getattr(error, "errno", None) == errno.EIO:  # the disk cannot read it, and so can no training
                answer.file, answer.problem = file.name, f"{file.name}: {answer.unread}"
            break
    absent = next(files.missing(path, found, request.previous, reader), None)
    if absent is not None and not answer.problem:  # a torn file says more than those that were to follow it
        answer.file, answer.problem = absent.name, absent.text
    if files.fingerprint(found) != files.fingerprint(_again(path)):
        answer.unread = CHANGING
    answer.files = tuple(checked)
    return answer


def _again(path: Path) -> list[CheckpointFile]:
    try:
        return files.listing(path)
    except (OSError, ValueError):
        return []


def _check(
    opened: IO[bytes], file: CheckpointFile, reader: FileReader, request: AuditRequest, before: CheckedFile | None
) -> CheckedFile:
    """Return a file with its checksums.

    Raises:
        DamageError: It is damaged.
    """
    sum_, proven = _structure(opened, file, reader, scan=request.values)
    sums = (sum_,) if sum_ is not None else reader.sums(opened, file.bytes)
    if not proven and file.bytes < PLAUSIBLE * request.previous.get(file.name, 0):
        raise DamageError(f"it has {file.bytes:,} bytes, and {request.previous[file.name]:,} in the checkpoint before")
    if before is not None and before.sums != sums and not request.rewritten:
        _compare(file, before, sums, proven=proven)
    return CheckedFile(*file, sums)


def _structure(opened: IO[bytes], file: CheckpointFile, reader: FileReader, *, scan: bool) -> tuple[int | None, bool]:
    """Return a checksum if reading the structure needed all bytes, and whether the structure vouches for the size."""
    suffix, size = Path(file.name).suffix, file.bytes
    head = opened.read(len(ZEROS))
    if suffix in files.SUFFIXES and size > len(ZEROS) // 8 and head == ZEROS[: len(head)]:
        raise DamageError("it begins with zeros")
    if suffix in _ZIPPED and has_archives(head, opened, size):
        return read_archives(opened, size, reader), True
    if suffix == ".safetensors":
        found = tensors(opened, size)
        if scan and (name := nonfinite(opened, found, reader)):
            raise DamageError(f"the tensor {name[:80]} has NaN or infinities")
        return None, True
    if suffix == ".json":
        if not files.is_json(b"".join(reader.pieces(opened, 0, min(size, files.INDEX_BYTES)))):
            raise DamageError("it is no valid JSON")
        return None, True
    if suffix in _PICKLED or Path(file.name).name == files.METADATA:
        _require_pickle(opened, head, size, suffix)
    return None, False


def _require_pickle(opened: IO[bytes], head: bytes, size: int, suffix: str) -> None:
    opened.seek(max(0, size - 1))
    whole = opened.read(1) == STOP or suffix in _ARCHIVED
    if not whole or not (head.startswith(PICKLE) or suffix == ".pkl"):
        raise DamageError("it is neither an archive of PyTorch nor a whole pickle")


def _compare(file: CheckpointFile, before: CheckedFile, sums: tuple[int, ...], *, proven: bool) -> None:
    """Compare a file with an earlier audit.

    Raises:
        DamageError: It was not written anew, and has other content.
    """
    if file.inode != before.inode:
        return
    parts = sum(one != other for one, other in zip(sums, before.sums, strict=False))
    if file.modified == before.modified:
        raise DamageError("its content has changed since the last audit, though nobody has written it")
    if file.bytes < before.bytes and not proven:
        raise DamageError(f"it has {file.bytes:,} bytes, and {before.bytes:,} at the last audit")
    if file.bytes == before.bytes and len(sums) > 1 and parts < len(sums):
        raise DamageError(f"{parts} of its {len(sums)} parts have changed since the last audit")


def _reason(error: BaseException) -> str:
    if isinstance(error, RefusedError):
        return str(error)
    if isinstance(error, MemoryError):
        return "reading it needs too much memory"
    return os_error_text(error)
