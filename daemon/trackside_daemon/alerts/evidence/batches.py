"""The batches of data with which the loss or the gradients of a run went wrong, as its ranks know them."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from trackside.limits import BATCH_NAMES, SAMPLE_LENGTH
from trackside.wire import Batches, BatchesQuestion, BatchSamples
from trackside_daemon.alerts.active_alert import CONCLUSION, OCCURRENCES
from trackside_daemon.alerts.evidence.sources import AlertCase
from trackside_daemon.history.read import alert_reader
from trackside_daemon.model.capture import RankAnswer
from trackside_daemon.model.families.training import RANK_STATE
from trackside_daemon.model.records import STEP
from trackside_daemon.model.text import counted, number, shown

BATCHES = "batches"  # name of the evidence
REPEATED = "repeated_samples"  # name of the evidence with the samples that several alerts have
MAX_CHARACTERS = 40_000  # of all samples and names
MAX_BATCHES = 1000
NAMED = 5  # samples that a sentence names
REPEATS = 3  # most samples that are named as those of several alerts; more would be chance
AGAIN = 4  # last times that it came, whose batches are asked for at once
EARLIER = 100  # newest alerts of the run among which they are looked for


def batches(case: AlertCase) -> dict[str, Any]:
    """Return the batches of the step at which the alert began or came again, and of the step before; with earlier ones of it.

    And those samples of them that other alerts about loss and gradients of the run have, too.
    """
    step = case.alert.evidence.get(STEP)
    if not isinstance(step, int):
        return {CONCLUSION: ""}
    with case.sources.history.reading() as connection:
        earlier = alert_reader.batches(connection, case.alert.run, EARLIER)
    of_alert = case.alert.fingerprint
    own = [
        {name: value for name, value in one.items() if name not in {"alert", "fingerprint"}}
        for one in earlier
        if one["fingerprint"] == of_alert
    ]
    times = [one[STEP] for one in case.alert.evidence.get(OCCURRENCES, ()) if STEP in one]
    found = [one for at in {step: 0, **dict.fromkeys(times[-AGAIN:])} for one in _asked(case, at, own)]
    found = found or [one for one in own if one["step"] == step]  # it came again at the same step
    if not found:
        return {} if case.alert.evidence.get(CONCLUSION) else {CONCLUSION: ""}
    again = repeated(found, earlier)
    shared = {REPEATED: again} if again else {}
    return {CONCLUSION: sentence(found, again), BATCHES: _added(own, found), **shared}


def _asked(case: AlertCase, step: int, known: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the batches of a step and of the one before, unless they are *known*."""
    if any(one["step"] == step and "before" not in one for one in known):
        return []
    (states,) = case.sources.state.values(case.now, RANK_STATE)
    ranks = frozenset(int(rank) for rank in case.shown_ranks(states) if rank.isdecimal())
    asked, answers = case.sources.ask_batches(case.alert.run, ranks, BatchesQuestion(step, before=1))
    found = listed(answers, step, set(case.ranks()))
    if len(answers) < len(asked):
        case.missing.append(f"batches: {counted(len(asked) - len(answers), 'rank')} did not answer")
    if not found:
        kept = [answer.body.first for answer in answers if answer.body.first is not None]
        why = (
            f"are kept from step {min(kept)} on" if kept else "are not known: the training gives no loader to run.data"
        )
        case.missing.append(f"batches: those of step {step} {why}" if asked else "batches: no rank is connected")
    return found


def listed(answers: Iterable[RankAnswer], step: int, first: Collection[str] = ()) -> list[dict[str, Any]]:
    """Return the batches of ranks as JSON, without what they leave empty: those of *step* and of the *first* ranks come first."""
    every = [
        (at, answer.rank, batch)
        for answer in answers
        if isinstance(answer.body, Batches)
        for at, of_step in answer.body.steps.items()
        for batch in of_step
    ]
    every.sort(key=lambda one: (one[0] != step, str(one[1]) not in first, one[1]))
    room, found = MAX_CHARACTERS // 2, []
    for at, rank, batch in every[:MAX_BATCHES]:
        entry = {"step": at, "rank": rank, **({} if at == step else {"before": True}), **_batch(batch, room)}
        room -= len(str(entry))
        found.append(entry)
    return found


def _added(own: Sequence[dict[str, Any]], found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what an alert has and what was *found* when it came again, without old ones if that is too much."""
    steps = {one["step"] for one in found}
    kept = [one for one in own if one["step"] not in steps]
    while kept and sum(len(str(one)) for one in (*kept, *found)) > MAX_CHARACTERS:
        del kept[next((place for place, one in enumerate(kept) if "before" in one), 0)]
    return [*kept, *found]


def _batch(batch: BatchSamples, room: int) -> dict[str, Any]:
    samples: list[int | str] = []
    for sample in batch.samples:
        one = sample if isinstance(sample, int) else shown(sample)[:SAMPLE_LENGTH]
        room -= len(str(one)) + 4
        if room < 0:
            break
        samples.append(one)
    names = {
        shown(sample)[:SAMPLE_LENGTH]: shown(name)[:SAMPLE_LENGTH]
        for sample, name in list(batch.names.items())[:BATCH_NAMES]
        if room > 0
    }
    texts = {field: shown(getattr(batch, field))[:SAMPLE_LENGTH] for field in ("by", "dataset", "why")}
    numbers = {"number": batch.number, "iteration": batch.iteration, "count": batch.count}
    kept = {"samples": samples, "names": names, **texts, **numbers}
    worker = {} if batch.worker is None else {"worker": batch.worker}
    return {**{name: value for name, value in kept.items() if value}, **worker}


def repeated(found: Iterable[Mapping[str, Any]], earlier: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the samples of the batches that were *found* that are in most *earlier* alerts: each *sample*, *times*, and *of* how many.

    Empty if there is none, or so many that chance explains them. Alerts of one step count once.
    """
    steps: dict[int, set[Any]] = {}
    for one in (*found, *earlier):
        if "before" not in one and one.get("samples"):
            steps.setdefault(one["step"], set()).update(one["samples"])
    times = Counter(sample for samples in steps.values() for sample in samples)
    mine = {sample for one in found if "before" not in one for sample in one.get("samples", ())}
    most = max((times[sample] for sample in mine), default=0)
    shared = [sample for sample in mine if times[sample] == most > 1]
    return [{"sample": one, "times": most, "of": len(steps)} for one in shared if len(shared) <= REPEATS]


def sentence(found: Sequence[Mapping[str, Any]], again: Sequence[Mapping[str, Any]]) -> str:
    """Return the batches in words: ``Step 2,813, rank 1: samples 48213, 9911 and 30 more; `dataset.samples[48213]` is 0481.png``."""
    mine = [one for one in found if (one["step"], one["rank"]) == (found[0]["step"], found[0]["rank"])]
    others = len({one["rank"] for one in found}) - 1
    shared = {str(one["sample"]) for one in again}
    samples = sorted(
        (str(sample) for one in mine for sample in one.get("samples", ())), key=lambda sample: sample not in shared
    )
    left = sum(one.get("count", len(one.get("samples", ()))) for one in mine) - len(samples[:NAMED])
    more = f" and {left:,} more" if samples and left > 0 else ""
    text = f"samples {', '.join(samples[:NAMED])}{more}" if samples else "; ".join(map(place, mine[:NAMED]))
    names = {sample: (one.get("by", ""), name) for one in mine for sample, name in one.get("names", {}).items()}
    called = next((sample for sample in samples if sample in names), None)
    if called is not None:
        by, name = names[called]
        text += f"; {f'`{by}[{called}]`' if '.' in by else called} is {name}"
    text += f"; {counted(others, 'other rank')} in the evidence" if others else ""
    many = (
        f"Sample {one['sample']} was in the batch at {one['times']} of the {one['of']} steps at which the loss or the "
        "gradients of this run went wrong."
        for one in again
    )
    return " ".join([f"Step {number(found[0]['step'])}, rank {found[0]['rank']}: {text}.", *many])


def place(batch: Mapping[str, Any]) -> str:
    """Return which batch of its loader this is, and why its samples are unknown."""
    iteration = f" of iteration {batch['iteration']}" if batch.get("iteration") else ""
    worker = f", from worker {batch['worker']}" if "worker" in batch else ""
    why = f" ({batch['why']})" if batch.get("why") else ""
    return f"batch {batch.get('number', '?')}{iteration}{worker}{why}"


def summary(batch: Mapping[str, Any], most: int | None = None) -> str:
    """Return the samples of a batch as one line, those with names first, at *most* so many; else which batch it is."""
    samples, names = [str(sample) for sample in batch.get("samples", ())], batch.get("names", {})
    listed = [f"{sample} {names[sample]}" for sample in samples if sample in names]
    listed += (sample for sample in samples if sample not in names)
    more = [f"and {len(listed) - most:,} more"] if most and len(listed) > most else []
    return ", ".join([*listed[:most], *more]) or place(batch)
