"""Questions about where the time of runs went."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from trackside_daemon.questions.question import (
    Baseline,
    FirstTime,
    InvalidError,
    Keys,
    LastTime,
    OfRun,
    Question,
    RunNames,
    limits,
)

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Sequence

    from trackside_daemon.questions.question import Live

SIZE = 1_600_000  # bytes of all charts of a report, so that its page stays below 2 MB
MOST_SIZE = 100_000_000
PROVEN = frozenset(("other_operation", "other_shape", "ended", "crossed"))  # kinds of hangs from which no rank goes on
MOST_RUNS = 64  # most runs of a comparison, with its baseline
MOST_KEYS = 64  # most keys of it


class Diagnosis(OfRun, frozen=True, kw_only=True):
    """Return where the time of a run went, and the causes that cost most."""

    path = "/runs/{id}/diagnosis"
    fields = ("ledger",)
    about = (
        "ledger has wall seconds by account, which sum to wall_seconds: means over the ranks, as ledger_by_rank has "
        "them. causes are what stops the run, then the costliest; listed are those of 5 % of the time or a minute. "
        "Removing one should gain low to high seconds, and no second has two causes; lost_seconds is null if it is not"
        " measured, or none. unknown says what is not measured, and why. suggestions are about the size of the job, "
        "trends are slopes per 1,000 steps, and comparison is that of /comparison. health is ok, slow or broken "
        "(failed, diverged, standing still or damaged), which verdict says in a sentence. hang is the verdict on the "
        "ranks of a run that hangs. Without an alert about it, the processes of a run without a step for 10 s and ten "
        "usual steps are asked, for some seconds; quiet_seconds is the time since the last step, and health is broken "
        "only if no rank can go on."
    )
    baseline: Baseline = ()
    key: Keys = ()

    def _read(self, connection: sqlite3.Connection, live: Live) -> dict[str, Any]:
        from trackside_daemon.diagnosis.diagnosis import diagnose

        _check_numbers(self.baseline, self.key)
        uid, prices = self.uid(connection), live.prices()
        return diagnose(connection, uid, prices, baseline=self.baseline, keys=self.key)

    def complete(self, found: dict[str, Any], live: Live) -> dict[str, Any]:
        """Ask the ranks now if there is no alert yet, or no verdict in it."""
        from trackside_daemon.causes.verdict import joined

        # Without a verdict the run goes on, or evaluates or saves a checkpoint.
        hang = live.hang(found["run"]) if found["verdict"] and not found["hang"] else None
        if hang is None:
            return found
        # Otherwise only time shows that the run does not go on: the alert decides.
        health = "broken" if hang["kind"] in PROVEN else found["health"]
        return {**found, "health": health, "verdict": joined(found["verdict"], hang), "hang": hang}


class Performance(OfRun, frozen=True, kw_only=True):
    """Return how fast a run was over time."""

    path = "/runs/{id}/performance"
    fields = ("times",)
    about = (
        "times are the ends of equal parts of the time; the lists have a value for each, null where it is unknown. "
        "step has p50 and p99 of the seconds per step of the lowest rank; phases are seconds per step, means over the "
        "ranks; tokens_per_second, samples_per_second and mfu are over all ranks. ranks are the lowest 64 (most_ranks)"
        " that name phases: own is the seconds per step in which one waits for no other, wait those for the slowest, "
        "ratio its own over the median rank's, past over the median of its own before. From straggler_ratio on, "
        "StragglerRank counts a rank as slow. collectives, if NCCL's Inspector measures them, have a row for each "
        "operation and size of a communicator: bandwidth in GB/s in the last tenth of the time, usual before it, peers"
        " of communicators of the same shape, seconds of an operation, and waits_for, the GPU for which others wait."
    )
    first: FirstTime = msgspec.field(default=None, name="from")
    last: LastTime = msgspec.field(default=None, name="to")
    points: Annotated[int, Meta(le=500, description="Number of parts of the time.")] = 120

    def _read(self, connection: sqlite3.Connection, live: Live) -> dict[str, Any]:
        from trackside_daemon.diagnosis.performance import read_performance
        from trackside_daemon.history.read.series import LogTails, Window

        window = Window("time", *limits(self.first, self.last))
        uid, tails = self.uid(connection), LogTails(connection)
        found = read_performance(connection, uid, tails, max(1, self.points), window)
        return {**found, "straggler_ratio": live.straggler_ratio()}


class Comparison(Question, frozen=True, kw_only=True):
    """Return how runs differ from a baseline, with intervals from the noise of the runs."""

    path = "/comparison"
    fields = ("effects",)
    about = (
        "An effect's value and baseline are means of the runs. Its quantity is step_time, step_time_p25, throughput, "
        "gpu_memory, host_memory, energy, cost or a key, which is compared at the last step that all runs have, and "
        "with _at_tokens at their last common number of tokens. better is lower, higher or empty. low and high are the"
        " 95 % interval of the ratio, difference_low and difference_high that of the difference. What is null has its "
        "reason in unknown; nonfinite is baseline or value if that side has NaN or infinite values there. chosen is "
        "how the baseline was found: run, tag, pinned or name; empty if there is none."
    )
    run: RunNames
    baseline: Baseline = ()
    key: Keys = ()

    def _read(self, connection: sqlite3.Connection, live: Live) -> dict[str, Any]:
        from trackside_daemon.diagnosis.comparison import read_comparison

        _check_numbers([*self.run, *self.baseline], self.key)
        return read_comparison(connection, self.run, self.baseline, self.key, live.prices())


class Report(OfRun, frozen=True, kw_only=True):
    """Return what a report has about a run: itself, its diagnosis, alerts, events, layers and charts."""

    path = "/runs/{id}/report"
    fields = ("charts",)
    about = (
        "charts are those of the lowest rank, the loss first, with null for NaN and infinities, and their axis in "
        "axes: steps, and seconds since the run's start. left_out counts the keys without one. "
        "layers are the 20 of an observed model that stand out most, as last measured."
    )
    size: Annotated[int, Meta(le=MOST_SIZE, description="At most so many bytes of all charts.")] = SIZE

    def _read(self, connection: sqlite3.Connection, live: Live) -> dict[str, Any]:
        from trackside_daemon.diagnosis.report import read_contents

        return read_contents(connection, self.uid(connection), live.prices(), self.size)


def _check_numbers(runs: Sequence[str], keys: Sequence[str]) -> None:
    """Raise `InvalidError` for more runs or keys than one answer may take time for."""
    if len(runs) > MOST_RUNS or len(keys) > MOST_KEYS:
        raise InvalidError(f"at most {MOST_RUNS} runs with the baseline and {MOST_KEYS} keys at a time")
