"""Serve what other programs write into ``*.prom`` files, as node_exporter's collector of this name does.

The format is https://prometheus.io/docs/instrumenting/exposition_formats/. The checks are those of node_exporter: a file with a
time stamp, of a line that cannot be read, or that does not end in a new line, is left out as a whole.
"""

import errno
import glob
import logging
import os
import re
import stat
from functools import partial
from pathlib import Path
from typing import TypeAlias

from trackside.os_errors import file_error_text, os_error_text
from trackside_daemon.collectors.base import NothingToCollect
from trackside_daemon.collectors.foreign import LABELS, SERIES, ForeignFamilies, ForeignFamily, Labels
from trackside_daemon.linux.foreign_file import open_checked
from trackside_daemon.model.families import foreign
from trackside_daemon.model.metric import Kind, Sample

FILE_BYTES = 8 * 2**20  # of all files together, which take some thirty times as much memory
_TOO_MUCH = f"with it, the files have more than {FILE_BYTES >> 20} MiB"
FILES = 256  # most files
LONGEST = 1024  # characters of a label's value

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_LABEL_VALUE = r'"(?:[^"\\]|\\[\\"n])*"'
_COMMENT = re.compile(rf"#[ \t]*(HELP|TYPE)[ \t]+({_NAME})(?:[ \t]+(.*))?")
# No text may match in more than one way: a long line would hold up the daemon for hours, since a search keeps the GIL.
_SAMPLE = re.compile(rf"({_NAME})(?:[ \t]*\{{(.*)\}}[ \t]*|[ \t]+)([^\s{{}}]+)(?:[ \t]+(\S+))?[ \t]*")
_PAIR = re.compile(rf"[ \t]*([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*({_LABEL_VALUE})[ \t]*(?:,|$)[ \t]*")
_ESCAPE = re.compile(r'\\([\\"n])')
_VALUE = re.compile(
    r"[-+]?(?:\d+(?:\.\d*)?(?:e[-+]?\d+)?|\.\d+(?:e[-+]?\d+)?|inf|infinity|nan)", re.IGNORECASE | re.ASCII
)
_KINDS: dict[str, Kind] = {"counter": "counter", "gauge": "gauge", "untyped": "unknown"}
_SUFFIXES = {"histogram": ("_bucket", "_sum", "_count"), "summary": ("_sum", "_count")}

_File: TypeAlias = tuple[tuple[int, ...], float, dict[str, ForeignFamily] | str]
"""Its version, its time, and its families, or why it has none."""

log = logging.getLogger("trackside")


def parse(text: str) -> dict[str, ForeignFamily]:
    """Return the families of a file, by name.

    Raises:
        ValueError: A line cannot be read; the message names it.
    """
    found: dict[str, ForeignFamily] = {}
    parents: dict[str, str] = {}
    if text and not text.endswith("\n"):
        raise ValueError("its last line has no end, so it may be incomplete")
    for number, line in enumerate(text.split("\n"), 1):
        try:
            if (stripped := line.strip(" \t")).startswith("#"):
                _read_comment(stripped, found, parents)
            elif stripped:
                _read_sample(stripped, found, parents)
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
    return {name: family for name, family in found.items() if family.series}


def _read_comment(line: str, found: dict[str, ForeignFamily], parents: dict[str, str]) -> None:
    """Read the help or the type of a family; other comments are for people."""
    comment = _COMMENT.fullmatch(line)
    if comment is None:
        if re.match(r"#[ \t]*(HELP|TYPE)[ \t]", line):
            raise ValueError(f"{line[:60]!r} names no family")
        return
    what, name, text = comment[1], comment[2], comment[3] or ""
    family = found.setdefault(name, ForeignFamily())
    if what == "HELP":
        if family.help is not None:
            raise ValueError(f"a second help text of {name}")
        family.help = re.sub(r"\\([\\n])", lambda escape: "\n" if escape[1] == "n" else "\\", text)
        return
    if text not in {*_KINDS, *_SUFFIXES}:
        raise ValueError(f"{text[:60]!r} is no type")
    if family.declared != "untyped" or family.series:
        raise ValueError(f"a second type of {name}, or one after its values")
    family.declared, family.kind = text, _KINDS.get(text, "unknown")
    parents.update((name + suffix, name) for suffix in _SUFFIXES.get(text, ()))


def _read_sample(line: str, found: dict[str, ForeignFamily], parents: dict[str, str]) -> None:
    sample = _SAMPLE.fullmatch(line)
    if sample is None or not _VALUE.fullmatch(sample[3]):
        raise ValueError(f"{line[:60]!r} is no sample")
    name, labels = sample[1], _labels(sample[2] or "")
    if sample[4] is not None:
        raise ValueError("it has a time stamp; leave the times out, since they are those of the scrapes")
    family = found.get(name)
    if family is None:
        parent = found.get(parents.get(name, ""))
        if parent is None:
            family = ForeignFamily()
        else:  # the counts and the sum of a histogram grow
            family = ForeignFamily("counter", parent.help, {}, f"{parent.declared}'s part")
        found[name] = family
    if len(family.series) >= SERIES:
        raise ValueError(f"{name} has more than {SERIES:,} series")
    if labels in family.series:
        raise ValueError(f"a second value of {line.rpartition('}')[0][:60] or name}")
    family.series[labels] = float(sample[3])


def _labels(text: str) -> Labels:
    found: dict[str, str] = {}
    at = 0
    while at < len(text):
        pair = _PAIR.match(text, at)
        if pair is None:
            raise ValueError(f"{text[at : at + 60]!r} is no label")
        if len(found) >= LABELS:
            raise ValueError(f"a series has more than {LABELS} labels")
        if pair[1] in found or pair[1] == "__name__":
            raise ValueError(f"the label {pair[1]} is there twice, or reserved")
        value = _ESCAPE.sub(lambda escape: "\n" if escape[1] == "n" else escape[1], pair[2][1:-1])
        if len(value) > LONGEST:
            raise ValueError(f"the label {pair[1]} has more than {LONGEST:,} characters")
        found[pair[1]] = value
        at = pair.end()
    return tuple(sorted((name, value) for name, value in found.items() if value))  # an empty label is none


def _refuse_link(path: str, found: os.stat_result) -> None:
    """Refuse a file behind a link at *path*, unless the link is of root, of this user or of the owner of the file.

    Else a user who may write into the directory could make this daemon show a file that it alone may read.
    """
    given = os.lstat(path)
    trusted = stat.S_ISLNK(given.st_mode) and given.st_uid in {0, os.geteuid(), found.st_uid}
    if not trusted and not os.path.samestat(given, found):
        raise OSError(errno.EPERM, "a link of a user to whom the file does not belong", path)
    # Where fs.protected_hardlinks is 0, anybody may link any file.
    if found.st_nlink > 1 and not found.st_mode & stat.S_IROTH:
        raise OSError(errno.EPERM, "one of several names (hard links) of a file that not all may read", path)


class TextfileCollector:
    """Every ``*.prom`` file of a directory; a file is read again when it has changed.

    Args:
        directory: The directory, or a pattern of several.
        families: The names of others' families.
    """

    name = "textfile"

    def __init__(self, directory: str, families: ForeignFamilies) -> None:
        self._directory = directory
        self._families = families
        self._files: dict[str, _File] = {}
        self._has_more = False
        self._unlisted: dict[str, str] = {}
        self._named: dict[str, str] = {}
        self._samples: list[Sample] = []
        self.left_out = ""

    def collect(self) -> list[Sample]:
        """Return the samples of all files that can be read, their times, and whether one could not.

        Raises:
            NothingToCollect: The directory has no such file.
            OSError: It cannot be listed, nor can any other of the pattern.
        """
        paths, unlisted = self._paths()
        before, has_more = self._files, len(paths) > FILES
        self._files, room = {}, FILE_BYTES
        for path in paths[:FILES]:
            self._files[path] = file = self._read(path, before.get(path), room)
            room -= 0 if isinstance(file[2], str) else file[0][2]
        if (
            any(before.get(path) is not file for path, file in self._files.items())
            or before.keys() != self._files.keys()
            or (has_more, unlisted) != (self._has_more, self._unlisted)
        ):
            self._has_more, self._unlisted = has_more, unlisted
            self._merge()
        if not paths and not unlisted:
            raise NothingToCollect(
                f"{self._directory} has no file that ends in .prom; programs write their numbers there"
            )
        return self._samples

    def _paths(self) -> tuple[list[str], dict[str, str]]:
        """Return the files, and why some of the directories cannot be listed."""
        places = sorted(glob.glob(self._directory)) or [self._directory]  # noqa: PTH207  as the setting is written
        found: list[str] = []
        unlisted: dict[str, str] = {}
        for place in places:
            try:
                found += [f"{place}/{name}" for name in os.listdir(place) if name.endswith(".prom")]  # noqa: PTH208
            except OSError as error:
                unlisted[place] = os_error_text(error)
                if len(unlisted) == len(places):
                    raise
        return sorted(found), unlisted

    def _read(self, path: str, before: _File | None, room: int) -> _File:
        """Return a file, which may have *room* bytes; the same object if it is unchanged."""
        version: tuple[int, ...] = ()
        try:
            path.encode()  # of one that is not UTF-8, no page and no history can have the name
            status = os.stat(path)  # noqa: PTH116
            version = status.st_ino, status.st_mtime_ns, status.st_size
            fits = status.st_size <= room
            if before is not None and before[0] == version and fits == (before[2] != _TOO_MUCH):
                return before
            with os.fdopen(open_checked(Path(path), partial(_refuse_link, path)), "rb") as file:
                data = file.read(room + 1) if fits else b""
            if not fits or len(data) > room:
                raise ValueError(_TOO_MUCH)  # noqa: TRY301
            return version, status.st_mtime_ns / 1e9, parse(data.decode())
        except UnicodeError:
            why = "it is not UTF-8"
        except OSError as error:
            why = file_error_text(error)
        except ValueError as error:
            why = str(error)
        found = (version, 0.0, why)
        return before if before == found else found

    def _merge(self) -> None:
        """Merge the files, and name each bad one once, until it is good again or bad for another reason."""
        good = [(path, found) for path, (_, _, found) in self._files.items() if not isinstance(found, str)]
        samples, wrong = self._families.merge(self.name, good)
        served = {path for path, _ in good} - {path for path, why in wrong.items() if "help text" not in why}
        wrong |= {path: found for path, (_, _, found) in self._files.items() if isinstance(found, str)} | self._unlisted
        if self._has_more:  # one line for all: each job may leave a file
            wrong[f"{self._directory} beyond its first {FILES} files"] = "there are too many"
        for path, why in wrong.items():
            if self._named.get(path) != why:
                log.warning("collector textfile: %s is left out: %s", path, why)
        self._named = wrong
        self.left_out = "; ".join(f"{path}: {why}" for path, why in sorted(wrong.items())[:3])
        times = [Sample(foreign.TEXTFILE_MTIME, (path,), self._files[path][1]) for path in sorted(served)]
        self._samples = [Sample(foreign.TEXTFILE_ERROR, (), float(bool(wrong))), *times, *samples]
