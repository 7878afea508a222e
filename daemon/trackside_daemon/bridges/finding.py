"""Recognize the runs of other tools in a file, in a directory or at an address."""

import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from trackside.os_errors import file_error_text
from trackside.packing import writable
from trackside_daemon.bridges.foreign_run import ForeignRun, ForeignRunError, id_of, name_of
from trackside_daemon.bridges.tensorboard.run_directory import EventDirectory, EventFolder, event_files
from trackside_daemon.linux.foreign_file import open_foreign

MAX_DIRECTORIES = 50_000
DEPTH = 12
TRAINER_STATE = "trainer_state.json"
PEEK_BYTES = 4096

FOLLOWED = ("runs", "lightning_logs", "wandb")
"""Directories in which TensorBoard's writers, Lightning and W&B write by default."""

_EVENT_FILE = re.compile(rb".{4}\0{4}.{0,32}brain\.Event:", re.DOTALL)
_SPLITS = frozenset(("train", "training", "validation", "valid", "val", "eval", "test"))
_WRITER = re.compile(r"tfevents\.\d+\.(.+)\.(\d+)\.")  # host and process in the name of an event file
_TIME = re.compile(r"\d{10}\.\d+")  # the directories of `add_hparams`
_LOG = re.compile(r"run-(.+)\.wandb")
_CHECKPOINT = re.compile(r"checkpoint-(\d+)")

KNOWN = (
    "event files of TensorBoard, logs of W&B (.wandb), MLflow (file store, SQLite file, address of a server), databases "
    "of trackio, metrics.csv of Lightning, trainer_state.json of Transformers, and files of trackside export"
)


def find_runs(
    place: str,
    environ: Mapping[str, str],
    report_broken: Callable[[str], object] = lambda _: None,
    *,
    exports: bool = False,
) -> list[ForeignRun]:
    """Return the runs of other tools at a place; none if it is a file of another kind.

    Args:
        place: A file, a directory, or the address of an MLflow server.
        environ: Environment with the secrets of servers.
        report_broken: Is called with a line about each run in a directory that is left out, since it cannot be read.
        exports: Also files of `trackside export` in a directory.

    Raises:
        ForeignRunError: A directory has no runs, or only broken ones, or a place cannot be read.
        OSError: The same.
    """
    if re.match(r"https?://", place):
        from trackside_daemon.bridges.mlflow.tracked_run import server_runs

        return list(server_runs(place, environ))
    if Path(place).exists() and not Path(place).is_dir() and not Path(place).is_file():  # a pipe can be read only once
        return []
    path = Path(place).resolve()  # what the user has named may be a link, but nothing below it: see `open_foreign`
    broken: list[str] = []
    found = list(_in_directory(path, broken.append, exports=exports)) if path.is_dir() else _in_file(path)
    for line in broken:
        report_broken(line)
    if not found and path.is_dir():
        reason = f"{place}: there are no runs in this directory; these are read: {KNOWN}"
        raise ForeignRunError(broken[0] if broken else reason)
    for run in found:
        run.place = writable(place) + run.place.removeprefix(writable(str(path)))
    return found


def _in_file(path: Path, root: Path | None = None) -> list[ForeignRun]:
    """Return the runs in a file; none if it is of no other tool."""
    from trackside_daemon.bridges import sqlite_file
    from trackside_daemon.bridges.wandb.log_run import MAGIC

    with open_foreign(path) if root else path.open("rb") as file:
        head = file.read(PEEK_BYTES)
    if _EVENT_FILE.match(head) or "tfevents" in path.name:  # its head may be damaged
        return [
            EventDirectory(id_of("event file", path), path.resolve().parent.name, [EventFolder("", path.parent)], path)
        ]
    if head.startswith(MAGIC) or _LOG.fullmatch(path.name):
        return [_log_run(path.stem.removeprefix("run-"), [path])]
    if head.startswith(sqlite_file.MAGIC):
        return _in_database(path)
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    columns = re.match(rb'\{\s*"[^"]+"\s*:\s*\{\s*"0"\s*:', text)
    if text[:1] == b"[" or columns or path.name == TRAINER_STATE:
        from trackside_daemon.bridges.file_runs import JsonRun

        return [JsonRun(path, name_of(path.resolve().parent, (root or path.parent).resolve()))]
    return []


def _in_database(path: Path) -> list[ForeignRun]:
    from trackside_daemon.bridges import sqlite_file, trackio
    from trackside_daemon.bridges.mlflow import tracked_run

    names = sqlite_file.tables(path)
    if names >= tracked_run.TABLES:
        return list(tracked_run.database_runs(path))
    if names >= trackio.TABLES:
        return list(trackio.trackio_runs(path))
    raise ForeignRunError(f"{path}: a SQLite file, but neither of MLflow nor of trackio")


def _in_databases(directory: Path, names: set[str]) -> Iterator[ForeignRun]:
    for name in sorted(names):
        if name.endswith((".db", ".sqlite", ".sqlite3")):
            with suppress(ForeignRunError):  # of another program
                yield from _in_database(directory / name)


def _log_run(id_: str, paths: Sequence[Path]) -> ForeignRun:
    from trackside_daemon.bridges.wandb.log_run import LogRun

    return LogRun(id_, paths)


def _in_directory(root: Path, report_broken: Callable[[str], object], *, exports: bool) -> Iterator[ForeignRun]:
    events: list[Path] = []
    logs: dict[str, list[Path]] = {}
    states: dict[Path, tuple[int, Path]] = {}
    for directory, names in _walk(root):
        if any("tfevents" in name for name in names):
            events.append(directory)
        elif "metrics.csv" in names:
            yield _csv_run(directory / "metrics.csv", name_of(directory, root))
        for log in filter(None, map(_LOG.fullmatch, sorted(names))):
            logs.setdefault(log[1], []).append(directory / log[0])
        if "meta.yaml" in names and (directory / "metrics").is_dir():
            yield from _readable(partial(_file_store_run, directory), report_broken)
        if TRAINER_STATE in names:
            step = _CHECKPOINT.fullmatch(directory.name)
            home = directory.parent if step else directory
            newest = int(step[1]) if step else 2**63
            states[home] = max(states.get(home, (-1, home)), (newest, directory / TRAINER_STATE))
        yield from _in_databases(directory, names)
        for name in sorted(names - {"metrics.csv", TRAINER_STATE}) if exports else ():
            yield from _readable(partial(_exported_run, directory / name), report_broken)
    yield from _event_runs(root, events)
    for id_, paths in sorted(logs.items()):
        yield _log_run(id_, sorted(paths))
    for _, path in states.values():
        yield from _readable(partial(_in_file, path, root), report_broken)


def _readable(make: Callable[[], list[ForeignRun]], report_broken: Callable[[str], object]) -> list[ForeignRun]:
    """Return the runs that a function makes; none if they cannot be read, so that the others of the directory are."""
    try:
        return make()
    except ForeignRunError as error:
        report_broken(str(error))
    except OSError as error:
        report_broken(file_error_text(error))
    return []


def _file_store_run(directory: Path) -> list[ForeignRun]:
    from trackside_daemon.bridges.mlflow.tracked_run import FileStoreRun

    return [FileStoreRun(directory)]


def _exported_run(path: Path) -> list[ForeignRun]:
    from trackside_daemon.bridges.file_runs import ExportedRun, is_export

    return [ExportedRun(path)] if is_export(path) else []


def _csv_run(path: Path, name: str) -> ForeignRun:
    from trackside_daemon.bridges.file_runs import CsvRun

    return CsvRun(path, name)


def _walk(root: Path) -> Iterator[tuple[Path, set[str]]]:
    """Yield directories with the names of their files, without links, as far as the limits allow."""
    for count, (folder, folders, names) in enumerate(os.walk(root)):
        directory = Path(folder)
        folders[:] = sorted(name for name in folders if not (directory / name).is_symlink())
        if len(directory.relative_to(root).parts) >= DEPTH:
            folders.clear()
        yield directory, {name for name in names if _is_regular(directory / name)}
        if count >= MAX_DIRECTORIES:
            raise ForeignRunError(f"{root}: more than {MAX_DIRECTORIES:,} directories; name one below it")


def _is_regular(path: Path) -> bool:
    """Return whether a path is a file: no link, and no pipe, at which reading would wait."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:  # it is gone
        return False


def _event_runs(root: Path, directories: Sequence[Path]) -> Iterator[EventDirectory]:
    """Yield the runs in directories with event files; those of one process that lie in one another are one run."""
    writers = {path: {_WRITER.search(file.name) for file in event_files(path)} for path in directories}
    names = {path: {match.groups() for match in found if match} for path, found in writers.items()}
    runs: dict[Path, list[EventFolder]] = {}
    homes: dict[Path, Path] = {}
    for path in directories:  # parents come first
        parent = path.parent
        inside = parent in names and bool(names[parent] & names[path])
        if path != root and (inside or path.name in _SPLITS):
            homes[path] = homes.get(parent, parent)
        home = homes.get(path, path)
        below = "" if home == path or _TIME.fullmatch(path.name) else writable(f"{path.relative_to(home)}/")
        runs.setdefault(home, []).append(EventFolder(below, path))
    for home, folders in runs.items():
        yield EventDirectory(id_of("tensorboard", home), name_of(home.resolve(), root.resolve()), folders)
