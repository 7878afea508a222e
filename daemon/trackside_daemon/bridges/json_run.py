"""Read runs from JSON documents: Hugging Face's trainer_state.json, and tables of W&B or pandas."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from trackside_daemon.bridges.foreign_run import ForeignRun, ForeignRunError, id_of, newest
from trackside_daemon.history.files.items import STEP, TIME, Clock
from trackside_daemon.history.files.json_format import number

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from trackside_daemon.history.files.items import Push

DOCUMENT_BYTES = 64 * 1024 * 1024


class JsonRun(ForeignRun):
    """A run in a document.

    Args:
        path: The file.
        name: Name of the run.
    """

    def __init__(self, path: Path, name: str) -> None:
        super().__init__(id_of("json", path), name, str(path), "JSON")
        self._path = path

    def modified(self) -> float:
        """See `ForeignRun`."""
        return newest([self._path])

    def read(self) -> Iterator[Push]:
        """See `ForeignRun`."""
        clock = Clock(self._path.stat().st_mtime)
        for row in self._rows():
            names = {str(key).lower(): key for key in row}
            step, time = (next((row[names[name]] for name in some if name in names), None) for some in (STEP, TIME))
            if not isinstance(step, int | float) or step != step // 1:
                self.leave_out("rows without a step")
                continue
            values: dict[str, float] = {}
            for name, key in names.items():
                if name not in (*STEP, *TIME) and row[key] is not None:
                    try:
                        values[str(key)] = number(row[key])
                    except (TypeError, ValueError, OverflowError):
                        self.leave_out("values that are not numbers", str(key))
            try:
                moment = clock.at(float(time) / (1000 if time > 1e11 else 1) if isinstance(time, int | float) else None)
            except (ValueError, OverflowError):
                moment = 0
            if values and (push := self.push(0, int(step), moment / 1e6, values)) is not None:
                yield push

    def _rows(self) -> list[dict[str, Any]]:
        """Return the rows of the table.

        Raises:
            ForeignRunError: There is none.
        """
        with self._path.open("rb") as file:
            text = file.read(DOCUMENT_BYTES + 1)
        if len(text) > DOCUMENT_BYTES:
            raise ForeignRunError(f"{self._path}: longer than {DOCUMENT_BYTES >> 20} MiB; write it as JSON lines")
        try:
            document = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ForeignRunError(f"{self._path}: JSON is expected: {error}") from None
        rows = table(document)
        if rows is None:
            raise ForeignRunError(
                f"{self._path}: a list of objects with steps is expected, or the state of a Trainer (log_history)"
            )
        if isinstance(document, dict):
            self.config = {
                key: document[key] for key in ("max_steps", "num_train_epochs", "train_batch_size") if key in document
            }
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
        index = dict.fromkeys(row for column in document.values() for row in column)
        return [{key: column.get(row) for key, column in document.items()} for row in index]
    return None
