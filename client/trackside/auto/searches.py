"""Searches and sweeps, whose trials each are a run with their parameters: Optuna, scikit-learn, jobs of Hydra's multirun."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import contextmanager, suppress
from functools import wraps
from os import register_at_fork
from threading import Lock
from typing import TYPE_CHECKING, Any

from trackside.auto.hooks import LibraryHook, auto_run
from trackside.environment.config import as_mapping, plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


_under_way = Lock()
"""Held by the outermost trial."""


def _forget_trial() -> None:
    """Begin anew in a process that was forked by a trial."""
    global _under_way  # noqa: PLW0603  a lock of the parent is never released here
    _under_way = Lock()


register_at_fork(after_in_child=_forget_trial)


class Search:
    """The hooks around each trial of a search.

    Args:
        name: Name of the hooks in the daemon's log.
    """

    def __init__(self, name: str) -> None:
        self._begins = LibraryHook(f"{name}: begin", self._begin)
        self._ends = LibraryHook(f"{name}: end", self._end)

    @contextmanager
    def trial(self, suffix: str, config: Callable[[], Mapping[str, Any]], tag: str = "") -> Iterator[dict[str, Any]]:
        """Make what is found meanwhile a run of its own, if anything is; trials within it, or in other threads, share that run.

        Args:
            suffix: What follows the name of the first run; empty for a number.
            config: Returns its configuration, which is read at the begin and at the end.
            tag: A word that all runs of the search have.

        Yields:
            Results of the run, to be filled in.
        """
        results: dict[str, Any] = {}
        if not _under_way.acquire(blocking=False):
            yield results
            return
        try:
            self._begins(suffix, config, tag)
            yield results
        finally:
            self._ends(config, results)
            _under_way.release()

    @staticmethod
    def _begin(suffix: str, config: Callable[[], Mapping[str, Any]], tag: str) -> None:
        auto_run().begin_next(suffix, _read(config), (tag,) if tag else ())

    @staticmethod
    def _end(config: Callable[[], Mapping[str, Any]], results: dict[str, Any]) -> None:
        run = auto_run()
        run.describe(config=_read(config))
        if results and run.queue is not None:
            run.queue.summary(results, {})
        run.begin_next(config={})


def _read(config: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
    found = plain(as_mapping(config()))
    return found if isinstance(found, Mapping) else {}


def optimize(original: Any, hook: str) -> Any:
    """Make each trial of `optuna.Study.optimize` a run; those of several threads share one."""
    search = Search(hook)

    @wraps(original)
    def optimize(self: Any, func: Any, *given: Any, **named: Any) -> Any:
        def objective(trial: Any) -> Any:
            with search.trial(f"trial-{trial.number}", lambda: trial.params, self.study_name) as results:
                value = func(trial)
                results["value" if isinstance(value, float | int) else "values"] = value
            return value

        jobs = given[2] if len(given) > 2 else named.get("n_jobs", 1)
        return original(self, objective if jobs == 1 else func, *given, **named)

    return optimize


def fit_and_score(original: Any, hook: str) -> Any:
    """Make each fit of a search or a cross-validation of scikit-learn a run."""
    search = Search(hook)

    @wraps(original)
    def fit_and_score(*given: Any, **named: Any) -> Any:
        with search.trial("", lambda: named.get("parameters") or {}):
            return original(*given, **named)

    return fit_and_score


def run_job(original: Any, hook: str) -> Any:
    """Make each job of Hydra's multirun a run."""
    search = Search(hook)

    @wraps(original)
    def run_job(task_function: Any, config: Any, *given: Any, **named: Any) -> Any:
        number = None
        with suppress(Exception):  # another version of Hydra
            number = config.hydra.job.get("num")  # a multirun's
        if number is None:
            return original(task_function, config, *given, **named)

        def settings() -> Mapping[str, Any]:
            return {key: value for key, value in as_mapping(config).items() if key != "hydra"}

        with search.trial(str(number), settings):
            return original(task_function, config, *given, **named)

    return run_job
