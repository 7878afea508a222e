"""Read runs in CSV and JSON files: of `trackside export`, Lightning's CSVLogger, Hugging Face's trainer, W&B or pandas."""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trackside_daemon.bridges.foreign_run import ForeignRun, ForeignRunError, id_of, read_yaml
from trackside_daemon.history.files.csv_format import read_csv
from trackside_daemon.history.files.export import COLUMNS
from trackside_daemon.history.files.formats import parse
from trackside_daemon.history.files.items import STEP, TIME, FormatError, Item, ItemClock, Push
from trackside_daemon.history.files.json_format import number
from trackside_daemon.history.files.left_out import NO_NUMBER
from trackside_daemon.history.files.run_file import open_run_file
from trackside_daemon.linux.foreign_file import open_foreign

SUFFIXES = (".csv", ".json", ".jsonl")
_EXPORT = re.compile(rb'\{"kind":"run",|\{"run": \{|"?%b"?,' % b'"?,"?'.join(name.encode() for name in COLUMNS))
HPARAMS_BYTES = 256 * 1024
DOCUMENT_BYTES = 64 * 1024 * 1024
MAX_FAILURES = 10_000  # places where no object begins, before the rest of a damaged document is given up
MAX_PASSES = 16  # how many times its length may be read in vain until then


class ExportedRun(ForeignRun):
    """A run in a file of one of our formats, with its own header.

    Raises:
        ForeignRunError: It has no run.
        OSError: It cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            with open_foreign(path) as file:
                begun = open_run_file(file, str(path))
        except FormatError as error:
            raise ForeignRunError(str(error)) from None
        super().__init__(begun.run, begun.name, str(path), "trackside")

    def items(self) -> Iterator[Item]:
        """Yield everything that the file has; see `ForeignRun`."""
        with open_foreign(self._path) as file:
            yield from parse(file, self.place, os.fstat(file.fileno()).st_mtime, self.left_out)

    def read(self, *, final: bool = True) -> Iterator[Push]:
        """See `ForeignRun`."""
        del final
        yield from (item for item in self.items() if isinstance(item, Push))


def is_export(path: Path) -> bool:
    """Return whether a file begins as one of `trackside export`.

    Raises:
        OSError: It cannot be read.
    """
    if path.suffix not in SUFFIXES:
        return False
    with open_foreign(path) as file:
        return _EXPORT.match(file.read(100)) is not None


class _FileRun(ForeignRun):
    """A run in a file.

    Args:
        path: The file.
        name: Name of the run.
    """

    form = tool = ""

    def __init__(self, path: Path, name: str) -> None:
        super().__init__(id_of(self.form, path), name, str(path), self.tool)
        self.paths = [path]
        self._path = path


class CsvRun(_FileRun):
    """A run of the CSVLogger. Its rows have no time, so each is dated a second after the one before."""

    form, tool = "csv", "Lightning"

    def read(self, *, final: bool = True) -> Iterator[Push]:
        """See `ForeignRun`."""
        self.config = self._hyperparameters()
        with open_foreign(self._path) as file:
            clock = ItemClock(os.fstat(file.fileno()).st_mtime)
            try:
                for item in read_csv(file, self.place, clock, self.left_out, final=final):
                    if isinstance(item, Push):
                        values = dict(zip(item.keys, item.values, strict=True))
                        if (push := self.push(item.attempt, item.step, item.time / 1e6, values)) is not None:
                            yield push
            except FormatError as error:
                if final:  # else its first line may not be complete
                    raise ForeignRunError(str(error)) from None

    def _hyperparameters(self) -> dict[str, object]:
        """Return the hyperparameters; none, and count it, if they cannot be read."""
        path = self._path.with_name("hparams.yaml")
        try:
            return read_yaml(path, HPARAMS_BYTES) if os.path.lexists(path) else {}
        except ForeignRunError as error:
            self.left_out.add("unreadable file(s) of hyperparameters", str(error))
            return {}


class JsonRun(_FileRun):
    """A run in a document."""

    form = "json"
    tool = "JSON"

    def read(self, *, final: bool = True) -> Iterator[Push]:
        """See `ForeignRun`."""
        with open_foreign(self._path) as file:
            clock = ItemClock(os.fstat(file.fileno()).st_mtime)
            text = file.read(DOCUMENT_BYTES + 1)
        if len(text) > DOCUMENT_BYTES:
            raise ForeignRunError(f"{self.place}: longer than {DOCUMENT_BYTES >> 20} MiB; write it as JSON lines")
        for row in self._rows(text.decode("utf-8-sig", "replace"), final=final):
            names = {str(key).lower(): key for key in row}
            step, time = (next((row[names[name]] for name in some if name in names), None) for some in (STEP, TIME))
            if not isinstance(step, int | float) or step != step // 1:
                self.left_out.add("row(s) without a step")
                continue
            values: dict[str, float] = {}
            for key, value in row.items():
                if str(key).lower() not in (*STEP, *TIME) and value is not None:
                    try:
                        values[str(key)] = number(value)
                    except (TypeError, ValueError, OverflowError):
                        self.left_out.add(NO_NUMBER, str(key))
            try:
                moment = clock.at(float(time) / (1000 if time > 1e11 else 1) if isinstance(time, int | float) else None)
            except (ValueError, OverflowError):
                moment = 0
            if values and (push := self.push(0, int(step), moment / 1e6, values)) is not None:
                yield push

    def _rows(self, text: str, *, final: bool) -> list[dict[str, Any]]:
        """Return the rows of a document; those that are whole if it is damaged.

        Raises:
            ForeignRunError: There is none.
        """
        try:
            document = json.loads(text)
        except (ValueError, RecursionError) as error:
            if not final:  # it is being written
                return []
            rows = _whole_rows(text)
            if not rows:
                raise ForeignRunError(f"{self.place}: JSON is expected: {error}") from None
            self.left_out.add("damaged part(s) of the document", str(error))
            return rows
        found = table(document)
        if found is None:
            raise ForeignRunError(
                f"{self.place}: a list of objects with steps is expected, or the state of a Trainer (log_history)"
            )
        if isinstance(document, dict):
            self.config = {
                key: document[key] for key in ("max_steps", "num_train_epochs", "train_batch_size") if key in document
            }
        return found


def _whole_rows(text: str) -> list[dict[str, Any]]:
    """Return the objects with a step that are whole in a damaged document."""
    decode = json.JSONDecoder().raw_decode
    rows: list[dict[str, Any]] = []
    at = failures = vain = 0
    while (at := text.find("{", at)) >= 0 and failures < MAX_FAILURES and vain < MAX_PASSES * len(text):
        try:
            row, at = decode(text, at)
        except (ValueError, RecursionError) as error:
            vain += getattr(error, "pos", at) - at
            failures += 1
            at += 1
            continue
        if any(str(key).lower() in STEP for key in row):
            rows.append(row)
    return rows


def table(document: Any) -> list[dict[str, Any]] | None:
    """Return the rows of a document; None if it has none.

    The document is a list of rows, an object with them as ``log_history``, or columns by name, each an object by index.
    """
    if isinstance(document, dict) and isinstance(document.get("log_history"), list):
        document = document["log_history"]
    if isinstance(document, list):
        return [row for row in document if isinstance(row, dict)] or None
    if isinstance(document, dict) and document and all(isinstance(column, dict) for column in document.values()):
        rows: dict[str, dict[str, Any]] = {}
        for key, column in document.items():
            for index, value in column.items():
                rows.setdefault(index, {})[key] = value
        return list(rows.values())
    return None
