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
from trackside_daemon.cli.sources.errors import LockedError, NotFoundError, SourceError, TokenError
from trackside_daemon.questions import table as questions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from trackside.benchmark.messages import Request
    from trackside.benchmark.results import Measured, Receiver
    from trackside_daemon.cli.sources.api_source import ApiSource

    Checkpoint = Mapping[str, Any]

POLL_SECONDS = 2.0
END_SECONDS = 30.0  # from the end of the run, until which the daemon finds and reads its last checkpoint
SLOWER = 1.05
BASELINE = "baseline"  # name of the variant that is the first checkpoint
AGREEMENTS = ("top1", "cosine", "exact_match")
ENDED = frozenset(("finished", "stopped", "failed", "lost"))


def watch(
    daemon: ApiSource,
    watched: str,
    request: Request,
    run: Receiver,
    measure: Callable[[Request], tuple[Measured, str]],
) -> Iterator[str]:
    """Measure the checkpoints of a run as they appear, until it has ended; yield a line about each.

    Of several that appear while one is measured, all but the newest are left out.

    Args:
        daemon: The daemon that audits them.
        watched: The run.
        request: What to measure of each checkpoint.
        run: The run that keeps the results.
        measure: Does a request, and returns what was measured, and why it ended early.
    """
    seen: set[str] = set()
    first: Checkpoint | None = None
    agreement: dict[str, Any] = {}
    while True:
        try:
            state = daemon.ask(questions.Run(id=watched, limit=0))
            found = daemon.ask(questions.Checkpoints(id=watched))["checkpoints"]
        except (LockedError, NotFoundError, TokenError):
            raise
        except SourceError:  # it is restarted
            time.sleep(POLL_SECONDS)
            continue
        good = [one for one in found if one["good"] and one["state"] == "complete" and Path(one["path"]).exists()]
        if not good or good[-1]["fingerprint"] in seen:
            if _is_over(state, found):
                return
            time.sleep(POLL_SECONDS)
            continue
        newest = good[-1]
        seen.add(newest["fingerprint"])
        first = first if first is not None and Path(first["path"]).exists() else newest
        specs = [replace(spec, checkpoint=newest["path"]) for spec in request.specs]
        if first is not newest:
            specs.append(replace(specs[0], name=BASELINE, checkpoint=first["path"]))
        measured, ended = measure(replace(request, specs=specs, polite=True))
        step, contents = newest["step"] or 0, {**results(measured), "ended": ended}
        publish(run, contents, step)
        texts = list(slower(contents))
        for variant in (one for one in contents["variants"] if one["name"] != BASELINE):
            before = agreement.setdefault(variant["name"], variant["agreement"])
            texts += disagreement(variant["name"], before, variant["agreement"])
        for text in texts:
            run.event(REGRESSION, title=f"checkpoint of step {step}: {text}", severity="warning", text=newest["path"])
        failed = [f"{one.variant}: {one.reason}" for one in measured.failures]
        yield f"step {step}: {'; '.join([*texts, *failed]) or 'as before'} ({newest['path']})"
        if ended:
            raise KeyboardInterrupt


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
