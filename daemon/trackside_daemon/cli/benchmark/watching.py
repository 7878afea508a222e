"""Measure each good checkpoint of a run next to its training, and report those that are worse than the first.

Slower means that the interval of the effect is beyond `SLOWER`; a variant such as int8 disagrees if its agreement with the
checkpoint's own model is below that of the first checkpoint, and their intervals do not overlap.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from trackside.benchmark.messages import LATENCY
from trackside.benchmark.results import REGRESSION, publish, results
from trackside_daemon.cli.benchmark import measuring
from trackside_daemon.cli.sources.errors import LockedError, NotFoundError, SourceError, TokenError
from trackside_daemon.questions import table as questions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from trackside.benchmark.messages import Request
    from trackside.benchmark.results import Receiver
    from trackside_daemon.cli.sources.api_source import ApiSource

    Checkpoint = Mapping[str, Any]

POLL_SECONDS = 2.0
END_SECONDS = 30.0  # from the end of the run, until which the daemon finds and reads its last checkpoint
SLOWER = 1.05
BASELINE = "baseline"  # name of the variant that is the first checkpoint
AGREEMENTS = ("top1", "cosine", "exact_match")
ENDED = frozenset(("finished", "stopped", "failed", "lost"))


class Watch:
    """The checkpoints of a run, as they appear.

    Args:
        daemon: The daemon that audits them.
        watched: The run.
        python: The Python that has the packages of the target.
        request: What to measure of each checkpoint.
        progress: Receives a line about what happens now.
    """

    def __init__(
        self, daemon: ApiSource, watched: str, python: str, request: Request, progress: Callable[[str], None]
    ) -> None:
        self._daemon = daemon
        self._watched = watched
        self._python = python
        self._request = replace(request, polite=True)
        self._progress = progress
        self._seen: set[str] = set()
        self._first: Checkpoint | None = None
        self._agreement: dict[str, Any] = {}

    def measure(self, run: Receiver) -> Iterator[str]:
        """Measure until the watched run has ended, and yield a line about each checkpoint."""
        while True:
            try:
                watched = self._daemon.ask(questions.Run(id=self._watched, limit=0))
                found = self._daemon.ask(questions.Checkpoints(id=self._watched))["checkpoints"]
            except (LockedError, NotFoundError, TokenError):
                raise
            except SourceError as error:  # it is restarted
                self._progress(str(error))
                time.sleep(POLL_SECONDS)
                continue
            newest = self._newest(found)
            if newest is not None:
                yield from self._measure(newest, run)
            elif _is_over(watched, found):
                return
            else:
                time.sleep(POLL_SECONDS)

    def _newest(self, found: Sequence[Checkpoint]) -> Checkpoint | None:
        """Return the newest good checkpoint that was not measured; older ones are left out."""
        good = [one for one in found if one["good"] and one["state"] == "complete" and Path(one["path"]).exists()]
        if not good or good[-1]["fingerprint"] in self._seen:
            return None
        self._seen.add(good[-1]["fingerprint"])
        return good[-1]

    def _measure(self, checkpoint: Checkpoint, run: Receiver) -> Iterator[str]:
        path, step = checkpoint["path"], checkpoint["step"] or 0
        specs = [replace(spec, checkpoint=path) for spec in self._request.specs]
        if self._first is not None and Path(self._first["path"]).exists():
            specs.append(replace(specs[0], name=BASELINE, checkpoint=self._first["path"]))
        else:
            self._first = checkpoint
        request = replace(self._request, specs=specs)
        measured, ended = measuring.run(self._python, request, 1, self._progress)
        contents = {**results(measured), "ended": ended}
        publish(run, contents, step)
        texts = [*slower(contents), *self._disagreeing(contents)]
        for text in texts:
            run.event(REGRESSION, title=f"checkpoint of step {step}: {text}", severity="warning", text=f"{path}")
        failed = [f"{one.variant}: {one.reason}" for one in measured.failures]
        yield f"step {step}: {'; '.join([*texts, *failed]) or 'as before'} ({path})"
        if ended:
            raise KeyboardInterrupt

    def _disagreeing(self, contents: Mapping[str, Any]) -> Iterator[str]:
        """Yield which variants agree less with their checkpoint than those of the first checkpoint did."""
        for variant in contents["variants"]:
            name, found = variant["name"], variant["agreement"]
            before = self._agreement.setdefault(name, found)
            if name != BASELINE:
                yield from disagreement(name, before, found)


def _is_over(watched: Mapping[str, Any], found: Sequence[Checkpoint]) -> bool:
    """Return whether a run has ended, and the daemon has read its last checkpoint."""
    reads = any(one["state"] == "writing" for one in found)
    return watched["state"] in ENDED and not reads and time.time() - watched["ended"] > END_SECONDS


def slower(contents: Mapping[str, Any]) -> Iterator[str]:
    """Yield under which loads the first variant is slower than the baseline."""
    for one in contents["comparisons"]:
        low = one["times_faster"]["low"]
        if one["variant"] == BASELINE and one["measure"] == LATENCY and low is not None and low > SLOWER:
            load = f" ({one['load']})" if one["load"] else ""
            yield f"{low:.3g} to {one['times_faster']['high']:.3g} times slower than the first checkpoint{load}"


def disagreement(name: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """Yield the measures of agreement that are lower than before, beyond both intervals."""
    for measure in AGREEMENTS:
        one, other = before.get(measure), now.get(measure)
        if one and other and None not in {one["low"], other["high"]} and other["high"] < one["low"]:
            yield f"{name} disagrees more: {measure} {other['value']:.3g} after {one['value']:.3g}"
