"""The causes of lost time: for each account of the ledger what it shows, what to try, and how to check afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from trackside_daemon.diagnosis.ledger import ACCOUNTS
from trackside_daemon.model.text import duration

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from trackside_daemon.diagnosis.facts import Facts

LEAST_SHARE = 0.01  # a cause below this share of the wall time is not worth anybody's time
USUAL_START = 30.0  # seconds that a start takes without a fault: imports, the first batch, the first compiled step
USUAL_END = 10.0  # seconds that an end takes without a fault: the last checkpoint, the exit


class Cause(NamedTuple):
    """A cause of lost time.

    Attributes:
        cause: Its name, in snake case.
        summary: One line for people.
        lost_seconds: Wall seconds that the run would be shorter by at most; None if that is not measured.
        low: The least of the interval in which the gain is expected.
        high: The most.
        evidence: What shows it, each a line of text.
        advice: What to try.
        check: How to check afterwards.
    """

    cause: str
    summary: str
    lost_seconds: float | None
    low: float | None
    high: float | None
    evidence: tuple[str, ...]
    advice: str
    check: str


class Advice(NamedTuple):
    """The words and the limits of an account's cause.

    Attributes:
        low: The share of the lost seconds that is gained at least; the rest may be hidden behind other work.
        usual: Seconds of the account in each attempt that are no loss.
        happened: What happened, in the words of a summary.
        advice: What to try.
        check: How to check afterwards.
    """

    low: float
    usual: float
    happened: str
    advice: str
    check: str


# The low ends: a wait that the host measures may overlap with work of the GPU; what stands still cannot.
ADVICE = {
    "data": Advice(
        0.5,
        0.0,
        "the training waited for data",
        "give the DataLoader more workers, pin_memory and prefetch_factor; move decoding and augmentation out of the step; "
        "check the storage",
        "phase `data` of trackside show, trackside_training_data_wait_seconds",
    ),
    "communication": Advice(
        0.5,
        0.0,
        "the other ranks waited for the slowest one",
        "give every rank the same work per step; compare the GPUs' clocks and what else runs on the slow rank's CPUs",
        "trackside_training_straggler_ratio",
    ),
    "throttled": Advice(
        0.3,
        0.0,
        "heat or a power brake held the GPUs' clocks down",
        "improve the cooling, move the job to another node, or set a power limit on purpose",
        "trackside_gpu_clock_limit_active, trackside_gpu_temperature_celsius",
    ),
    "checkpoint": Advice(
        0.3,
        0.0,
        "the training waited for its checkpoints",
        "save less often, asynchronously, or to local storage first",
        "trackside_training_checkpoint_duration_seconds",
    ),
    "eval": Advice(
        0.0,
        0.0,
        "evaluation took time from training",
        "evaluate less often, on fewer samples, or with larger batches",
        "phase `eval` of trackside show",
    ),
    "start": Advice(
        0.3,
        USUAL_START,
        "the start took long before the first step",
        "cache compiled kernels and the dataset's index; load the checkpoint from local storage",
        "the first step in trackside show",
    ),
    "gap": Advice(
        0.3,
        0.0,
        "the run stood still between its attempts",
        "restart at once, for example with torchrun --max-restarts; keep a spare node",
        "attempts in trackside show",
    ),
    "repeated": Advice(
        0.3,
        0.0,
        "a restart trained the same steps again",
        "save checkpoints more often, and resume from the newest one",
        "cause `restart` in trackside show",
    ),
    "stall": Advice(
        0.8,
        0.0,
        "the training stood still",
        "see the stacks and the verdict in the alert TrainingStalled; set a timeout for collectives",
        "alerts TrainingStalled and RankSilent",
    ),
    "end": Advice(
        0.5,
        USUAL_END,
        "the process lived on after its last step",
        "end the process, and release its GPUs, after the last step",
        "the time of the last step in trackside show",
    ),
    "wasted": Advice(
        0.8,
        0.0,
        "the training went on after its loss was NaN or had diverged",
        "stop at a critical alert, resume from the last good checkpoint with a lower learning rate or clipped gradients",
        "alerts NonFinite and LossDiverging",
    ),
}


def account_causes(facts: Facts, ledger: Mapping[str, float]) -> Iterator[Cause]:
    """Yield a cause for each account that lost a share of the time that matters."""
    attempts = len({span.attempt for span in facts.spans})
    for account, advice in ADVICE.items():
        seconds = ledger.get(account, 0.0) - attempts * advice.usual
        if account == "communication" and facts.ranks > 1:
            # The ledger has the mean, and the slowest rank does not wait; at the others' pace the run would be shorter by
            # what they wait.
            seconds *= facts.ranks / (facts.ranks - 1)
        if seconds < LEAST_SHARE * facts.wall or not seconds:
            continue
        share = seconds / facts.wall
        summary = f"{advice.happened}: {share:.0%} of the time, {duration(seconds)} at most"
        evidence = (
            f"{ACCOUNTS[account]}: {duration(ledger[account])} of {duration(facts.wall)}",
            *(str(resume["text"]) for resume in facts.resumes if account == "repeated" and "text" in resume),
            *_alerts(facts, account),
        )
        yield Cause(
            _NAMES.get(account, account),
            summary,
            seconds,
            advice.low * seconds,
            seconds,
            evidence,
            advice.advice,
            advice.check,
        )


_NAMES = {"data": "data_wait", "communication": "straggler", "start": "start_up", "gap": "restart", "end": "idle_end"}

_ALERTS = {
    "data": ("DataLoaderBottleneck", "DataLoaderWorkerKilled"),
    "communication": ("StragglerRank",),
    "throttled": ("GpuThrottled",),
    "gap": ("TrainingProcessDied", "OomKilled", "TrainingFailed"),
    "stall": ("TrainingStalled", "RankSilent"),
    "wasted": ("NonFinite", "LossDiverging"),
}
"""The alerts that are evidence of an account."""


def _alerts(facts: Facts, account: str) -> Iterator[str]:
    names = _ALERTS.get(account, ())
    return (
        f"alert {alert['id']} {alert['alert']}: {alert['summary']}" for alert in facts.alerts if alert["alert"] in names
    )


def resume_causes(facts: Facts) -> Iterator[Cause]:
    """Yield a cause for each resume that does not continue where the run was; what it costs is not measured."""
    for resume in facts.resumes:
        if resume.get("cause"):
            yield Cause(
                f"resume_{resume['cause']}",
                f"attempt {resume['attempt']} does not continue where the run was",
                None,
                None,
                None,
                ("verdict on the resume", str(resume.get("text", ""))),
                "restore weights, optimizer, scheduler, scaler, random states and the position in the data, and resume again",
                "resumes in trackside show",
            )


def as_json(cause: Cause, ranks: int, price: float | None) -> dict[str, Any]:
    """Return a cause as JSON, with the GPU hours that its ranks lost, and their cost if a GPU hour has a price."""
    hours = None if cause.lost_seconds is None else cause.lost_seconds * ranks / 3600
    cost = None if hours is None or price is None else hours * price
    return {**cause._asdict(), "evidence": list(cause.evidence), "gpu_hours": hours, "cost": cost}
