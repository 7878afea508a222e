"""A run of MLflow, whatever stores it: its fields, and its metrics merged back into pushes."""

import sys
from abc import abstractmethod
from array import array
from collections.abc import Iterable, Iterator, Mapping
from math import inf, nan
from typing import Any

from trackside.packing import writable
from trackside_daemon.bridges.foreign_run import NO_TIME, ForeignRun
from trackside_daemon.history.files.items import Push
from trackside_daemon.history.files.merging import Chunk, merge

STATES = {"FINISHED": "finished", "FAILED": "failed", "KILLED": "stopped"}
STATUSES = ("", "RUNNING", "SCHEDULED", "FINISHED", "FAILED", "KILLED")  # by their number in a file store
CHUNK_SAMPLES = 16_384


class TrackedRun(ForeignRun):
    """A run of MLflow.

    Args:
        id: Its id.
        place: Where it is stored.
        fields: ``run_name``, ``status``, ``user_id``, as far as they are known.
    """

    def __init__(self, id: str, place: str, fields: Mapping[str, Any]) -> None:  # noqa: A002  the field's word
        super().__init__(id, str(fields.get("run_name") or fields.get("name") or id), place, "MLflow")
        status = str(fields.get("status", ""))
        if status in STATES:
            self.state = STATES[status]
            self.cause = ""
        elif status:
            self.state, self.cause = "lost", "imported before its end"
        if user := fields.get("user_id"):
            self.about["user"] = str(user)

    def read(self, *, final: bool = True) -> Iterator[Push]:
        """See `ForeignRun`."""
        params, tags = self._described()
        self.tags = ()
        self.config.update({key: _number_or_text(value) for key, value in params})
        for key, value in tags:
            if not key.startswith("mlflow."):
                self.tags = (*self.tags, f"{key}={value}")
            elif key in _ABOUT:
                self.about[_ABOUT[key]] = value
        keys = self._metrics()
        names = list(map(writable, keys))
        for line in merge([self._chunks(key, final=final) for key in keys]):
            values = {names[place]: value for place, value in zip(line.places, line.values, strict=True)}
            if (push := self.push(0, line.step, line.time / 1e6, values)) is not None:
                yield push

    @abstractmethod
    def _described(self) -> tuple[Iterable[tuple[str, str]], Iterable[tuple[str, str]]]:
        """Return parameters and tags."""

    @abstractmethod
    def _metrics(self) -> list[str]:
        """Return the keys."""

    @abstractmethod
    def _samples(self, key: str, *, final: bool) -> Iterator[tuple[int, int, float]]:
        """Yield the samples of a key: step, time in milliseconds, value."""

    def _chunks(self, key: str, *, final: bool) -> Iterator[Chunk]:
        """Yield the samples of a key as `merge` reads them."""
        steps, times, values = array("q"), array("q"), array("d")
        for step, milliseconds, value in self._samples(key, final=final):
            if not (abs(step) < 2**63 and abs(milliseconds) < 2**50):
                self.left_out.add(NO_TIME, writable(key))
                continue
            steps.append(step)
            times.append(milliseconds * 1000)
            values.append(value)
            if len(steps) == CHUNK_SAMPLES:
                yield steps, times, values
                steps, times, values = array("q"), array("q"), array("d")
        if len(steps):
            yield steps, times, values


_ABOUT = {"mlflow.source.name": "command", "mlflow.source.git.commit": "git_commit"}


def restored(value: float, *, is_nan: bool = False) -> float:
    """Return a value as it was logged: databases of MLflow have the largest number for an infinity."""
    return nan if is_nan else inf if value >= sys.float_info.max else -inf if value <= -sys.float_info.max else value


def _number_or_text(text: str) -> Any:
    for convert in (int, float):
        try:
            return convert(text)
        except ValueError:
            continue
    return text
