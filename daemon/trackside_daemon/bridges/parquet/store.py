"""A directory or an object store, in which a file is complete or not there."""

from __future__ import annotations

import os
import re
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from trackside_daemon.history.frames.optional_library import library
from trackside_daemon.http_client.errors import SendError, SettingError

if TYPE_CHECKING:
    from collections.abc import Iterator

UNFINISHED = "_unfinished"  # folder of files that are being written; readers skip names that begin with _


class Store:
    """A place for files.

    Args:
        url: A directory, or an address such as ``s3://BUCKET/PREFIX``; see ``pyarrow.fs.FileSystem.from_uri``.

    Attributes:
        files: The file system, of ``pyarrow.fs``.
        path: The place in it.
        local: Whether it is a directory of this machine.

    Raises:
        SettingError: The address cannot be used, or a library is not installed.
    """

    def __init__(self, url: str) -> None:
        try:
            found = library("pyarrow.fs")
            self.local = urlsplit(url).scheme in {"", "file"}
            if self.local:
                path = Path(urlsplit(url).path if url.startswith("file:") else url).expanduser().absolute()
                self.files: Any = found.LocalFileSystem()
                self.path = str(path)
            else:
                self.files, path = found.FileSystem.from_uri(url)
                self.path = str(path).rstrip("/")
        except (ModuleNotFoundError, OSError, ValueError) as error:
            reason = re.sub(r"//[^/@]*@", "//…@", str(error))  # an address may have a key and its secret
            raise SettingError(f"the target of Parquet files: {reason}") from None

    @contextmanager
    def writing(self, name: str) -> Iterator[Any]:
        """Yield a stream for the file with this name; it replaces an earlier one when the block ends without an error.

        Raises:
            SendError: The file cannot be written.
        """
        unfinished, target = f"{self.path}/{UNFINISHED}/{name.replace('/', '+')}", f"{self.path}/{name}"
        try:
            for path in (unfinished, target) if self.local else ():
                self.files.create_dir(path.rpartition("/")[0], recursive=True)
            stream = self.files.open_output_stream(unfinished)
            try:
                yield stream
            finally:
                # An object store completes a file even after an error, so its final name comes only afterwards.
                stream.close()
            if self.local:
                _sync(unfinished)
            self.files.move(unfinished, target)
        except OSError as error:
            with suppress(OSError):
                self.files.delete_file(unfinished)
            raise SendError(f"{target}: {' '.join(str(error).split())}") from None

    def metadata(self, name: str) -> dict[bytes, bytes]:
        """Return the metadata of a Parquet file; empty if there is no such file.

        Raises:
            SendError: The store does not answer.
        """
        path = f"{self.path}/{name}"
        try:
            if self.files.get_file_info(path).size is None:
                return {}
            found: dict[bytes, bytes] | None = (
                library("pyarrow.parquet").read_metadata(path, filesystem=self.files).metadata
            )
        except OSError as error:
            raise SendError(f"{path}: {' '.join(str(error).split())}") from None
        except ValueError:  # no Parquet file: it is replaced
            return {}
        return found or {}


def _sync(path: str) -> None:
    """Write a file to the disk before it gets its name: otherwise a power cut could leave it empty."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
