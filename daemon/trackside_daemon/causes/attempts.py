"""Time around and between the attempts of a run, steps that are lost or done again, and resumes that do not continue."""

from collections.abc import Iterator

from trackside_daemon.causes.cause import Cause, Evidence, Kind, LostTime, drawn_accounts, of_accounts
from trackside_daemon.causes.steps import cadence
from trackside_daemon.model.text import duration, shown

USUAL_START = 30.0  # seconds that a start takes without a fault: imports, the first batch, the first compiled step
USUAL_END = 10.0  # seconds that an end takes without a fault: the last checkpoint, the exit


def _repeated(kind: Kind, time: LostTime) -> Iterator[Cause]:
    """Yield the steps that were done again, with what the resumes cost."""
    facts = time.facts
    for lost, account in drawn_accounts(kind, time):
        resumes = (Evidence(str(one["text"]), facts.api) for one in facts.resumes if "text" in one)
        yield kind.found(time, lost, *resumes, *cadence(facts), account)


def _resumes(kind: Kind, time: LostTime) -> Iterator[Cause]:
    """Yield each resume that does not continue where the run was; what it costs is not measured."""
    facts = time.facts
    for resume in facts.resumes:
        if resume.get("cause"):
            found = kind.found(time, None, summary=kind.happened.format(resume["attempt"]))
            verdict = Evidence(str(resume.get("text", "")), facts.api)
            yield found._replace(cause=f"{kind.name}_{resume['cause']}", evidence=(verdict, *found.evidence))


def _failed(kind: Kind, time: LostTime) -> Iterator[Cause]:
    """Yield the failure that ended the run: what it trained since its last checkpoint is lost."""
    facts = time.facts
    last = [span for span in facts.spans if span.attempt == facts.spans[-1].attempt] if facts.spans else []
    if facts.run["state"] not in {"failed", "lost"}:
        return
    saved = max((span.account.saved_at for span in last if span.account.saved_at is not None), default=None)
    since = facts.ended - (min(span.started for span in last) if saved is None else saved) if last else 0.0
    lost = kind.draw(time, since)
    kept = "no checkpoint is known" if saved is None else f"its last checkpoint was {duration(since)} before"
    reason = f" ({shown(facts.run['cause'])})" if facts.run["cause"] else ""
    how = "failed" if facts.run["state"] == "failed" else "was lost"
    resume = (
        "save checkpoints"
        if saved is None
        else f"resume from `trackside checkpoints latest {shown(facts.run['name'])} --good`"
    )
    found = kind.found(time, lost, summary=kind.happened.format(how, reason, kept), advice=kind.advice.format(resume))
    yield found._replace(evidence=(Evidence(f"state {facts.run['state']}", facts.api), *found.evidence))


def _stalled(kind: Kind, time: LostTime) -> Iterator[Cause]:
    """Yield the time in which the run stood still, and also that it stands still now if no second of it is counted yet."""
    stands = kind.name in time.verdict.causes
    summary = kind.happened.format("stands" if stands else "stood")
    found = [kind.found(time, lost, account, summary=summary) for lost, account in drawn_accounts(kind, time)]
    yield from found or ([kind.found(time, None, summary=summary)] if stands else [])


START_UP = Kind(
    "start_up",
    "the start took long before the first step",
    "cache compiled kernels and the dataset's index; load the checkpoint from local storage",
    "the first step in trackside show",
    ("idle_before", "start"),
    low=0.3,
    usual=USUAL_START,
    lost=of_accounts,
)
RESTART = Kind(
    "restart",
    "the run stood still between its attempts",
    "restart at once, for example with trackside run --restart; keep a spare node",
    "attempts in trackside show",
    ("gap",),
    low=0.3,
    alerts=("TrainingProcessDied", "OomKilled"),
    lost=of_accounts,
)
REPEATED = Kind(
    "repeated",
    "a restart trained the same steps again",
    "save checkpoints more often, and resume from the newest one",
    "steps done again after a restart, in trackside show",
    ("repeated",),
    low=0.3,
    alerts=("LossRestart",),
    lost=_repeated,
)
STALL = Kind(
    "stall",
    "the training {} still",
    "see the stacks and the verdict in the alert TrainingStalled; set a timeout for collectives",
    "alerts TrainingStalled and RankSilent",
    ("stall",),
    low=0.8,
    alerts=("TrainingStalled", "RankSilent"),
    lost=_stalled,
)
IDLE_END = Kind(
    "idle_end",
    "the process lived on after its last step",
    "end the process, and release its GPUs, after the last step",
    "the time of the last step in trackside show",
    ("idle_after",),
    low=0.5,
    usual=USUAL_END,
    lost=of_accounts,
)
WASTED = Kind(
    "wasted",
    "the training went on after its loss was NaN or had diverged",
    "stop at a critical alert, resume from the last good checkpoint with a lower learning rate or clipped gradients",
    "alerts NonFinite and LossDiverging",
    ("wasted",),
    low=0.8,
    alerts=("NonFinite", "LossDiverging"),
    lost=of_accounts,
)
RESUME = Kind(
    "resume",
    "attempt {} does not continue where the run was",
    "restore weights, optimizer, scheduler, scaler, random states and the position in the data, and resume again",
    "resumes in trackside show",
    alerts=("LossDiscontinuity",),
    lost=_resumes,
)
FAILED = Kind(
    "failed",
    "the run {}{}, and {}",
    "{}; see the end of the job's log",
    "attempts in trackside show",
    ("compute",),
    least=0.0,
    alerts=("TrainingProcessDied", "OomKilled"),
    lost=_failed,
)
