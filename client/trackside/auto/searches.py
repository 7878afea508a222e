"""Searches and sweeps, whose trials each are a run with their parameters: Optuna, scikit-learn, jobs of Hydra's multirun."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import contextmanager, nullcontext, suppress
from functools import wraps
from itertools import count
from os import register_at_fork
from threading import Lock, get_ident
from typing import TYPE_CHECKING, Any

from trackside.auto.hooks import LibraryHook, auto_run, failures, runs
from trackside.environment.config import as_mapping, plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


_under_way = Lock()
"""Held by the outermost trial, or by a search whose trials run in threads."""

_numbers = count()  # of trials in threads


def _forget_trial() -> None:
    """Begin anew in a process that was forked by a trial."""
    global _under_way  # noqa: PLW0603  a lock of the parent is never released here
    _under_way = Lock()
    runs.clear()


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
    def trial(
        self, suffix: str, config: Callable[[], Mapping[str, Any]], tag: str = "", *, beside: bool = False
    ) -> Iterator[dict[str, Any]]:
        """Make what is found meanwhile a run of its own, if anything is; trials within it share that run.

        Args:
            suffix: What follows the name of the first run; empty for a number.
            config: Returns its configuration, which is read at the begin and at the end.
            tag: A word that all runs of the search have.
            beside: Other trials run at the same time, in other threads.

        Yields:
            Results of the run, to be filled in.
        """
        results: dict[str, Any] = {}
        with _of_thread() if beside else _outermost() as has_run:
            if has_run:
                self._begins(suffix, config, tag)
            try:
                yield results
            finally:
                if has_run:
                    self._ends(config, results)

    @contextmanager
    def threads(self) -> Iterator[bool]:
        """End the run before trials in threads; yield False if they belong to another trial."""
        with _outermost() as is_outermost:
            if is_outermost:
                self._begins("", dict, "")
            yield is_outermost

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


@contextmanager
def _outermost() -> Iterator[bool]:
    lock = _under_way  # which a forked child replaces
    is_outermost = lock.acquire(blocking=False)
    try:
        yield is_outermost
    finally:
        if is_outermost:
            lock.release()


@contextmanager
def _of_thread() -> Iterator[bool]:
    """Let this thread have runs of its own meanwhile; yield False if this process has had too many."""
    from trackside.auto.pytorch import own_watch
    from trackside.auto.run import RUNS, AutoRun
    from trackside.default_run import own_default

    if next(_numbers) >= RUNS:
        yield False
        return
    with own_default(), own_watch():
        runs[get_ident()] = AutoRun(failures)
        try:
            yield True
        finally:
            runs.pop(get_ident(), None)


def _read(config: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
    found = plain(as_mapping(config()))
    return found if isinstance(found, Mapping) else {}


def optimize(original: Any, hook: str) -> Any:
    """Make each trial of `optuna.Study.optimize` a run."""
    search = Search(hook)

    @wraps(original)
    def optimize(self: Any, func: Any, *given: Any, **named: Any) -> Any:
        jobs = given[2] if len(given) > 2 else named.get("n_jobs", 1)

        def objective(trial: Any) -> Any:
            name = f"trial-{trial.number}"
            with search.trial(name, lambda: trial.params, self.study_name, beside=jobs != 1) as results:
                value = func(trial)
                results["value" if isinstance(value, float | int) else "values"] = value
            return value

        with nullcontext(True) if jobs == 1 else search.threads() as has_runs:
            return original(self, objective if has_runs else func, *given, **named)

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
