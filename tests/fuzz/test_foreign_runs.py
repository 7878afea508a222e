"""Files of other tools of any bytes: every record that is whole comes, and no other; the only errors are the readers' own.

The first byte of an input chooses the kind of file.
"""

from __future__ import annotations

import io
import json
import shutil
import sqlite3
import struct
import tempfile
import zlib
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from bridges import wandb_logs
from bridges.directories import BEGIN, file_name
from bridges.wandb_logs import logged, row
from fuzz.mutation import mutants

from trackside_daemon.bridges.finding import find_runs
from trackside_daemon.bridges.foreign_run import ForeignRunError
from trackside_daemon.bridges.mirrors.target import Row
from trackside_daemon.bridges.tensorboard.event_file import EventRecords, masked_crc
from trackside_daemon.bridges.tensorboard.mirror import encoded_event, encoded_record
from trackside_daemon.bridges.wandb import log_run
from trackside_daemon.bridges.wandb.log_run import MAGIC, LogFile
from trackside_daemon.history.files.formats import parse
from trackside_daemon.history.files.items import FormatError, Push
from trackside_daemon.history.files.left_out import LeftOut

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trackside_daemon.bridges.record_file import RecordFile
    from trackside_daemon.history.files.items import Item

PLACE = tempfile.TemporaryDirectory(prefix="ts-", dir="/dev/shm")  # deleted at the end of the process
STORE = "mlruns/0/r"


@cache
def database(name: str) -> bytes:
    """Return a database of MLflow or of trackio."""
    from bridges.test_finding import mlflow_database, trackio_database

    path = Path(PLACE.name, name)
    (mlflow_database if name == "mlflow.db" else trackio_database)(path)
    sqlite3.connect(path).close()
    return path.read_bytes()


def lines(form: str, count: int = 12) -> bytes:
    return "".join(form.format(step=step, time=BEGIN + step, value=step / 4) for step in range(count)).encode()


EVENTS = [
    encoded_event(Row(0, 0, True, step, (BEGIN + step) * 10**6, {"loss": step / 2, "é": 1.0})) for step in range(9)
]
SAMPLES = [{"step": step, "loss": step / 4, "epoch": 0} for step in range(9)]
FILES: dict[str, tuple[str, Callable[[], bytes]]] = {
    "e": (file_name(), lambda: b"".join(map(encoded_record, [b"\x1a\x0dbrain.Event:2", *EVENTS]))),
    "w": ("run-a.wandb", lambda: logged([row(step, size=step % 3 * 400) for step in range(9)])),
    "c": ("v/metrics.csv", lambda: b"step,time,loss,ok,n\n" + lines("{step},{time},{value},True,x\n")),
    "q": ("v/metrics.csv", lambda: b'step,loss,n\n0,1,"a\nb"\n1,2,"c""d"\n' + lines('{step},{value},"x,y"\n')),
    "j": ("a.jsonl", lambda: b'{"kind":"run","id":"a","name":"a","attempt_list":[]}\n' + ours()),
    "d": ("a.json", lambda: json_document()),  # noqa: PLW0108  it is defined below
    "t": ("trainer_state.json", lambda: json.dumps({"log_history": SAMPLES}, indent=1).encode()),
    "o": ("trainer_state.json", lambda: json.dumps({key: {"0": 1, "1": 2} for key in ("step", "loss")}).encode()),
    "m": (f"{STORE}/metrics/loss", lambda: lines("{time}000 {value} {step}\n")),
    "y": (f"{STORE}/meta.yaml", lambda: b"run_id: r\nrun_name: n\nstatus: 3\nuser_id: ann\n"),
    "h": ("v/hparams.yaml", lambda: b"lr: 0.1\nmodel: {depth: 3, act: [gelu, 1e-3]}\n"),
    "s": ("mlflow.db", lambda: database("mlflow.db")),
    "k": ("project.db", lambda: database("project.db")),
}
"""Path and content by the byte that chooses it."""


def ours() -> bytes:
    return lines('{{"kind":"samples","attempt":0,"rank":0,"step":{step},"time":{time},"values":{{"loss":{value}}}}}\n')


def json_document() -> bytes:
    points = [[step, BEGIN + step, step / 4] for step in range(9)]
    series = [{"attempt": 0, "rank": 0, "key": key, "points": points} for key in ("loss", "lr")]
    head = {"id": "a", "name": "a", "attempt_list": [{"attempt": 0, "state": "failed", "started": 1}]}
    return b'{"run": %b,\n"series": [\n%b],\n"events": [],\n"alerts": []}' % (
        json.dumps(head).encode(),
        ",\n".join(map(json.dumps, series)).encode(),
    )


@contextmanager
def small_blocks() -> Iterator[None]:
    """Make the blocks of W&B's logs so small that some fit into an input."""
    with mock.patch.object(log_run, "BLOCK_BYTES", 512), mock.patch.object(wandb_logs, "BLOCK_BYTES", 512):
        yield


@small_blocks()
def check(data: bytes) -> None:
    """Read a file as an import does, and its records; compare these with those that are found without speed."""
    kind = chr(data[0]) if data[:1].isascii() and data else "e"
    kind = kind if kind in FILES else "e"
    name, content = FILES[kind][0], data[1:]
    place = Path(PLACE.name, "runs")
    for path, needed in {f"{STORE}/meta.yaml": "y", f"{STORE}/metrics/loss": "m", "v/metrics.csv": "c"}.items():
        if Path(name).parts[0] == Path(path).parts[0]:
            write(place / path, FILES[needed][1]())
    write(place / name, content)
    try:
        pushes = read(place)
        if kind in "ew":
            check_records(kind, place / name, content)
        elif kind in "cm":
            check_lines(kind, content, pushes)
        elif kind in "jd":
            pushes = [item for item in exported(content) if isinstance(item, Push)]
            if kind == "j":
                check_lines(kind, content, pushes)
    finally:
        shutil.rmtree(place)


def write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def exported(content: bytes) -> Iterator[Item]:
    """Yield the items of a file of one of our formats."""
    with suppress(FormatError):
        yield from parse(io.BytesIO(content), "a", 0.0, LeftOut())


def read(place: Path) -> list[Push]:
    """Return the pushes of the run in a directory; none if it is refused."""
    notes: list[str] = []
    pushes: list[Push] = []
    try:
        for run in find_runs(str(place), {}, notes.append, exports=True):
            pushes += [item for item in run.items() if isinstance(item, Push)]
            notes += run.notes()
            run.close()
    except (ForeignRunError, FormatError, OSError) as error:
        notes.append(str(error))
    for note in notes:
        assert len(note.splitlines()) == 1, note
    return pushes


def check_records(kind: str, path: Path, content: bytes) -> None:
    """Compare the whole records of a file with those that are whole at any byte."""
    if kind == "w" and not content.startswith(MAGIC):
        return
    file: RecordFile = EventRecords(path, LeftOut()) if kind == "e" else LogFile(path, LeftOut())
    found = b"".join(span.data[span.begin : span.end] for span in file.spans(final=True))
    file.close()
    at, whole = (0 if kind == "e" else len(MAGIC)), b""
    while at < len(content):
        size = (event_size if kind == "e" else fragment_size)(content, at)
        whole += content[at : at + size]
        at += size or 1
    assert found.strip(b"\0") == whole.strip(b"\0") or found.replace(b"\0", b"") == whole.replace(b"\0", b"")


def event_size(content: bytes, at: int) -> int:
    """Return the size of the whole record of an event file at a place; 0 if there is none."""
    if at + 16 > len(content):
        return 0
    length, crc = struct.unpack_from("<QI", content, at)
    end = at + 12 + length
    if masked_crc(content[at : at + 8]) != crc or end + 4 > len(content):
        return 0
    right = masked_crc(content[at + 12 : end]) == struct.unpack_from("<I", content, end)[0]
    return end + 4 - at if right and length < 4097 else 0


def fragment_size(content: bytes, at: int) -> int:
    """Return the size of the whole fragment of a log of W&B at a place; 0 if there is none."""
    if at + 7 > len(content):
        return 0
    crc, size, kind = struct.unpack_from("<IHB", content, at)
    end = at + 7 + size
    whole = 1 <= kind <= 4 and end <= len(content) and zlib.crc32(content[at + 6 : end]) == crc
    return end - at if whole else 0


def check_lines(kind: str, content: bytes, pushes: list[Push]) -> None:
    """Check that the unchanged lines come."""
    given = content.split(b"\n")
    header, *original = FILES[kind][1]().split(b"\n")[:-1]
    if kind == "m":
        original = [header, *original]
    elif (kind == "j" and content[:1] != b"{") or (
        kind == "c" and (given[0] != header or content.count(b"step") > 1 or b'"' in content)
    ):
        return
    steps = {push.step for push in pushes}
    for line in set(given[:-1]) & set(original):
        step: Any = (
            json.loads(line)["step"] if kind == "j" else line.split(b"," if kind == "c" else None)[-(kind == "m")]
        )
        assert int(step) in steps, line


@small_blocks()
def seeds() -> list[bytes]:
    return [kind.encode() + content() for kind, (_, content) in FILES.items()]


def test_any_file_of_another_tool_is_read_or_refused_with_a_line(fuzz: Callable[..., None]) -> None:
    def short() -> None:
        for data in mutants(seeds(), 700):
            check(data)

    fuzz(short, seeds())
