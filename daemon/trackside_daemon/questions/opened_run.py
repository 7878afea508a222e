"""A run as a Python object, for `trackside.open`: its facts, and every sample of it.

What only some need is imported where it is used: most ask for series.
"""

from __future__ import annotations

import sqlite3
import warnings
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from trackside_daemon.history.frames import html
from trackside_daemon.history.media import index
from trackside_daemon.history.read import alert_reader, reader
from trackside_daemon.history.read.offline import Offline
from trackside_daemon.history.read.series import EVERYTHING, Window
from trackside_daemon.questions.opened_series import Media, Series, whole

if TYPE_CHECKING:
    from trackside_daemon.questions.question import Question

Keys = str | Sequence[str]
Ranks = int | Collection[int]
Missing = Literal["error", "ignore"]


class RunHistory:
    """A run in the history; `trackside.open` and `History` return it. Two of the same run are equal.

    What is said of a run that has not ended is read anew each time; that of an ended one as `refresh` found it.

    Raises:
        UnknownRunError: Something of a run is read that was deleted meanwhile.
        HistoryError: There is no history, or it cannot be read.
        ValueError: A part of the file is damaged.
    """

    def __init__(self, path: Path, about: dict[str, Any]) -> None:
        self._path = path
        self._about = about

    @property
    def id(self) -> str:
        """The identifier of the run."""
        return str(self._about["id"])

    @property
    def about(self) -> dict[str, Any]:
        """Name, state, start, end, tags, step, loss and more, as the HTTP API lists them; NaN is a float."""
        if self._about["ended"] is None:
            self.refresh()
        return self._about

    def refresh(self) -> RunHistory:
        """Read anew what is said of an ended run, such as its tags and whether a resume has continued it; return the run."""
        with self._reading() as connection:
            self._about = current(connection, reader.head(connection, self.id))
        return self

    @property
    def name(self) -> str:
        """The name that people see."""
        return str(self._about["name"])

    @property
    def state(self) -> str:
        """``starting``, ``running``, ``stalled``, ``finished``, ``stopped``, ``failed`` or ``lost``."""
        return str(self.about["state"])

    @property
    def step(self) -> int | None:
        """The highest step of all ranks; None before the first."""
        found: int | None = self.about["step"]
        return found

    @property
    def started(self) -> float:
        """Unix seconds of its start."""
        return float(self._about["started"])

    @property
    def ended(self) -> float | None:
        """Unix seconds of its end; None before it."""
        found: float | None = self.about["ended"]
        return found

    @property
    def tags(self) -> list[str]:
        """The words to find the run by."""
        return list(self.about["tags"])

    @property
    def summary(self) -> dict[str, Any]:
        """The results, as `trackside.summary` set them."""
        return dict(self.about["summary"])

    @property
    def config(self) -> Any:
        """The configuration of the last attempt that has one; None if none has."""
        if "attempt_list" not in self.about:  # as a list of runs has it
            self.refresh()
        attempts = self._about["attempt_list"]
        return next((one["config"] for one in reversed(attempts) if one["config"] is not None), None)

    @property
    def events(self) -> list[dict[str, Any]]:
        """The newest 10,000 events, oldest first, each with ``kind``, ``time``, ``step``, ``attempt``, ``rank`` and ``fields``."""
        from trackside_daemon.questions.runs import Events

        return list(self._ask(Events(run=self.id, limit=10_000))["events"])

    @property
    def alerts(self) -> list[dict[str, Any]]:
        """The newest 1,000 alerts with their evidence, oldest first, as ``/alerts`` of docs/http-api.md has them."""
        from trackside_daemon.questions.alerts import Alerts

        return list(self._ask(Alerts(run=self.id))["alerts"])

    def checkpoints(self, metric: str = "") -> list[dict[str, Any]]:
        """Return its checkpoints in the order of saving, each with ``step``, ``path``, ``state``, ``good`` and ``value``.

        Args:
            metric: The key of ``value``; empty for that which was reported with a checkpoint, else the loss.
        """
        from trackside_daemon.questions.artifacts import Checkpoints

        found = self._ask(Checkpoints(id=self.id, metric=metric))["checkpoints"]
        return [{**one, "value": None if one["value"] is None else float(one["value"])} for one in found]

    def diagnosis(self, *, baseline: str = "") -> dict[str, Any]:
        """Return where its time went, and why it is slow or broken, as ``/runs/{id}/diagnosis`` of docs/http-api.md.

        It needs ``trackside[daemon]``. Without a daemon it has no costs, and does not ask the ranks of a live run.

        Args:
            baseline: A run or a tag to compare with; empty for the pinned run of the name, else the last finished one.
        """
        from trackside_daemon.questions.diagnosis import Diagnosis

        return self._ask(Diagnosis(id=self.id, baseline=(baseline,) if baseline else ()))

    @property
    def keys(self) -> list[str]:
        """The keys of all ranks, in the order in which they began."""
        with self._reading() as connection:
            return list(dict.fromkeys(found.series.key for found in reader.series(connection, self.id, ranks=())))

    def series(
        self,
        keys: Keys | None = None,
        *,
        ranks: Ranks | None = None,
        attempt: int | None = None,
        steps: tuple[float, float] | None = None,
        missing: Missing = "error",
    ) -> list[Series]:
        """Return series with all their samples. It needs no library.

        Args:
            keys: A key or several; None for all that the ranks pushed. A key that begins with ``trackside_`` is a
                series of the GPUs or the host, in the time of the run.
            ranks: Only this rank, or these; None for all.
            attempt: Only this attempt; None for all.
            steps: Only samples from the first to the last of these steps.
            missing: ``ignore`` leaves out a key that the run does not have.

        Raises:
            UnknownKeyError: The run has no such key, in no rank and attempt.
        """
        wanted, chosen = listed(keys), _ranks(ranks)
        with open_file(self._path) as file:
            with file.reading() as connection:
                begin, end = reader.span(connection, self.id)
                # Of the reader, no ranks are all of them.
                found = list(
                    reader.series(connection, self.id, wanted, () if chosen is None else chosen or {-1}, attempt)
                )
                if missing == "error":
                    reader.check_keys(connection, [self.id], wanted or (), found)
            lifetime = Window("time", begin, float("inf") if end is None else end)
            window = EVERYTHING if steps is None else Window("step", *steps)
            return [whole(file, one, lifetime if one.rank is None else window) for one in found]

    def media(self, key: str = "", *, kind: str = "") -> list[Media]:
        """Return what was logged with `log_image`, `log_text`, `log_table` and `log_histogram`, the oldest first.

        Args:
            key: Only this key; empty for all.
            kind: Only ``image``, ``text``, ``table`` or ``histogram``; empty for all.
        """
        with self._reading():  # the files of a deleted run may still be there
            directory = index.directory_of(self._path, self.id)
        return [
            Media(item.kind, item.key, item.attempt, item.rank, item.step, item.time, directory / item.file)
            for item in index.read(self._path, self.id)
            if key in {"", item.key} and kind in {"", item.kind}
        ]

    def batches(self, step: int | None = None, *, rank: int | None = None) -> list[dict[str, Any]]:
        """Return the batches of data in the evidence of alerts about the loss and the gradients, the oldest first.

        Each has ``step``, ``rank``, ``alert``, and what is known: ``samples``, their ``count`` and ``names``, ``dataset``,
        ``number`` in the ``iteration`` over the loader, ``worker``, and ``why`` they are unknown. That of the step before has
        ``before``. *step* and *rank* select some.
        """
        with self._reading() as connection:
            return alert_reader.batches(connection, self.id, step=step, rank=rank)

    def to_arrow(
        self,
        keys: Keys | None = None,
        *,
        ranks: Ranks | None = None,
        attempt: int | None = None,
        missing: Missing = "error",
    ) -> Any:
        """Return the samples as a ``pyarrow.Table``: a row for each push, by attempt, rank and time.

        Its columns are ``attempt``, ``rank``, ``step``, ``time`` (UTC, in microseconds) and one for each key. A key that
        a push did not have is null; a NaN that was pushed is NaN. The arguments, and the errors, are those of `series`, for keys
        that the ranks pushed; `machine_to_pandas` has those of the GPUs and the host.

        Raises:
            ModuleNotFoundError: The library is not installed.
        """
        return self._converted("to_arrow", keys, ranks, attempt, missing)

    def to_pandas(
        self,
        keys: Keys | None = None,
        *,
        ranks: Ranks | None = None,
        attempt: int | None = None,
        missing: Missing = "error",
    ) -> Any:
        """Return the samples as a ``pandas.DataFrame``, as `to_arrow` does; a missing key is NaN, too."""
        return self._converted("to_pandas", keys, ranks, attempt, missing)

    def to_polars(
        self,
        keys: Keys | None = None,
        *,
        ranks: Ranks | None = None,
        attempt: int | None = None,
        missing: Missing = "error",
    ) -> Any:
        """Return the samples as a ``polars.DataFrame``, as `to_arrow` does."""
        return self._converted("to_polars", keys, ranks, attempt, missing)

    def machine_to_pandas(self, keys: Keys, *, join: Keys = ()) -> Any:
        """Return series of the GPUs and the host in the time of the run, joined to its steps, as a ``pandas.DataFrame``.

        It has a row for each time and each set of labels. Its columns are ``time`` (UTC), ``step`` (the newest of the lowest
        rank until then), those of *join*, one for each label, such as ``gpu``, and one for each family.

        Args:
            keys: Families, such as ``trackside_gpu_power_watts``, or single series.
            join: Pushed keys whose newest value of the lowest rank until then is a column.

        Raises:
            UnknownKeyError: The run, or its machine, has no such key.
            ModuleNotFoundError: pandas is not installed.
        """
        from trackside_daemon.history.frames.optional_library import library

        library("pandas")  # the error has the command that installs it
        from trackside_daemon.history.frames import frame as frames

        machine = self.series(listed(keys))
        if pushed := [one.key for one in machine if one.rank is not None]:
            raise reader.UnknownKeyError(
                f"key {pushed[0]!r}: no series of the machine; name it in join, or use to_pandas"
            )
        with self._reading() as connection:
            lowest = min((one.rank for one in reader.series(connection, self.id) if one.rank is not None), default=0)
        joined = listed(join) or []
        steps = self.to_pandas(joined or None, ranks=lowest)[["time", "step", *joined]]
        steps = steps.astype({"step": "Int64"}).sort_values("time").ffill()
        return frames.machine_table(machine, steps)

    def __repr__(self) -> str:
        return f"<trackside run {self.name!r} ({self.id}), {self.about['state']}>"

    def _repr_html_(self) -> str:
        with reading(self._path) as connection:
            return html.run(reader.run(connection, self.id, html.SHOWN_KEYS))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RunHistory) and (self._path, self.id) == (other._path, other.id)

    def __hash__(self) -> int:
        return hash((self._path, self.id))

    def _ask(self, question: Question) -> dict[str, Any]:
        from trackside_daemon.questions.question import Live

        def prices() -> Any:
            from trackside_daemon.diagnosis.settings import CostSection

            return CostSection()

        with open_file(self._path) as file:
            return question.answer(file, Live(prices=prices, straggler_ratio=lambda: 1.0))

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with reading(self._path) as connection:
            reader.span(connection, self.id)  # raises an error if the run was deleted
            yield connection

    def _converted(self, to: str, keys: Keys | None, ranks: Ranks | None, attempt: int | None, missing: Missing) -> Any:
        from trackside_daemon.history.frames.optional_library import library

        library("numpy")  # the error has the command that installs it
        from trackside_daemon.history.frames import frame as frames

        wanted, convert = listed(keys), getattr(frames, to)
        for key in wanted or ():
            if key.startswith(reader.MACHINE):
                raise reader.UnknownKeyError(f"key {key!r}: of the machine, not of a rank; use machine_to_pandas")
        with self._reading() as connection:
            frame = frames.read_frame(connection, self.id, wanted, _ranks(ranks), attempt)
            if missing == "error" and wanted is not None and not frame.has_all():
                reader.check_keys(connection, [self.id], wanted, ())
        return convert(frame)


@contextmanager
def open_file(path: Path) -> Iterator[Offline]:
    """Open the file for one question: a notebook may be open for days."""
    file = Offline(path, lambda line: warnings.warn(line, stacklevel=5))
    try:
        yield file
    finally:
        file.close()


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """Open the file for one question, and a snapshot of it."""
    with open_file(path) as file, file.reading() as connection:
        yield connection


def current(connection: sqlite3.Connection, about: dict[str, Any]) -> dict[str, Any]:
    """Return what a reader has of a run, with the newest step and loss of a live one, and the loss as a float."""
    if about["ended"] is None:
        about |= reader.newest(connection, about["id"])
    return about if about["loss"] is None else {**about, "loss": float(about["loss"])}


def listed(keys: Keys | None) -> list[str] | None:
    """Return one key or several as a list."""
    return [keys] if isinstance(keys, str) else None if keys is None else list(keys)


def _ranks(ranks: Ranks | None) -> frozenset[int] | None:
    return None if ranks is None else frozenset([ranks] if isinstance(ranks, int) else ranks)
