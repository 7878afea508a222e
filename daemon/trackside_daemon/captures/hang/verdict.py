"""The verdict on a run that hangs: for whom it waits, and where that rank is."""

from collections.abc import Collection, Iterable, Mapping
from itertools import islice
from typing import Any, NamedTuple

from trackside_daemon.captures.hang.cases import Absent, Kind, RankDump, WaitCase, find_cases
from trackside_daemon.model.records import is_critical
from trackside_daemon.model.text import number, ranges

RANKS = 512  # most ranks that a list of a verdict has
PLACES = 64  # most ranks whose place it has, those at fault first

NAMED_PLACES = 3  # most places in the code that a text names
NO_ANSWER = "did not answer within 3 s"


class HangVerdict(NamedTuple):
    """Why a run hangs, as JSON values."""

    kind: Kind  # see `cases.Kind`
    text: str  # one sentence or a few, in one line
    ranks: tuple[int, ...] = ()  # the ranks that hold the run up; empty if unknown
    waiting: tuple[int, ...] = ()  # the ranks that only wait
    silent: tuple[int, ...] = ()  # the ranks that did not answer
    unseen: tuple[int, ...] = ()  # the ranks that this daemon does not see
    group: str = ""  # the process group; empty outside any
    sequence: int = 0  # number of the collective in its group; 0 outside any
    operation: str = ""  # the collective
    seconds: float = 0.0  # how long it has waited; 0 outside any
    places: Mapping[str, str] = {}  # innermost call in the user's code by rank
    pids: Mapping[str, int] = {}  # process id by rank, of those that this daemon sees
    # The ranks whose main thread or GPU computes, or that a debugger or a signal has stopped; those that wait in a
    # collective may compute.
    busy: tuple[int, ...] = ()


def verdict(dumps: Mapping[int, RankDump], absent: Absent, subject: int | None = None) -> HangVerdict | None:
    """Return the verdict on a run whose ranks make no progress; None if nothing is known.

    Args:
        dumps: What the ranks that answered do.
        absent: The other ranks.
        subject: Only this rank makes no progress; None for the whole run.
    """
    cases = [case for case in find_cases(dumps, absent) if subject is None or subject in case.ranks | case.waiting]
    if not cases:
        return _outside(dumps, absent, subject)
    case = cases[0]
    if subject is None:  # a rank that waits in another group does so because of this one, or has a case of its own
        case = case._replace(waiting=frozenset(rank for rank, dump in dumps.items() if dump.pending()) - case.ranks)
    text = f"{_sentence(case, cases, dumps, absent)}{_wait(case)}.{_unknown(case, absent)}"
    return _verdict(case.kind, text, case.ranks, dumps, absent)._replace(
        waiting=_first(case.waiting),
        group=case.title,
        sequence=case.call.sequence,
        operation=case.call.operation,
        seconds=round(case.call.age, 3),
    )


def _outside(dumps: Mapping[int, RankDump], absent: Absent, subject: int | None) -> HangVerdict | None:
    """Return the verdict on ranks that do not wait in a collective."""
    ranks = frozenset(dumps) if subject is None else frozenset({subject}) & dumps.keys()
    silent = absent.silent if subject is None else absent.silent & {subject}
    if silent:
        return _verdict("silent", f"{_silent(silent, absent)}.", silent, dumps, absent)
    if places := places_text(dumps, ranks):
        alone = len(dumps) == 1 and not any((*absent[:3], *(dump.groups for dump in dumps.values())))
        text = f"{places}." if alone else f"{places}, outside any collective."
        return _verdict("outside", text, ranks if len(ranks) == 1 else (), dumps, absent)
    return None


def _verdict(
    kind: Kind, text: str, ranks: Collection[int], dumps: Mapping[int, RankDump], absent: Absent
) -> HangVerdict:
    order = [*sorted(ranks), *sorted(dumps.keys() - set(ranks))]
    places = {str(rank): dumps[rank].place for rank in order if rank in dumps and dumps[rank].place}
    return HangVerdict(
        kind,
        text[:1].upper() + text[1:],
        _first(ranks),
        silent=_first(absent.silent),
        unseen=_first(absent.unseen),
        places=dict(islice(places.items(), PLACES)),
        busy=_first(rank for rank, dump in dumps.items() if dump.busy),
    )


def hanging(alert: Mapping[str, Any]) -> str:
    """Return the verdict on the run of a firing `TrainingStalled`, as JSON, if it hangs; empty if it may go on, or did."""
    hang = alert["evidence"].get("hang")
    if hang is None or "recovered" in alert["evidence"] or not is_critical(alert):
        return ""
    if set(hang.get("busy", ())) - set(hang["waiting"]):
        return ""
    return f"{alert['summary']}: {hang['text']}"


def _first(ranks: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(ranks))[:RANKS]


def _sentence(case: WaitCase, cases: Collection[WaitCase], dumps: Mapping[int, RankDump], absent: Absent) -> str:
    """Return who holds up the group, and how."""
    call = f"{case.call.operation} number {number(case.call.sequence)} of {case.title}"
    who, where = ranks_text(case.ranks) if case.ranks else "", places_text(dumps, case.ranks)
    there = f"; {where}" if where else ""
    if case.kind in {"other_operation", "other_shape"}:
        return f"{_mismatch(case, call)}{there}"
    if case.kind == "never_arrived":
        return f"{who} never arrived at {call}: outside any collective{there.replace(';', ',', 1)}"
    if case.kind == "crossed":
        waits = " and ".join(dict.fromkeys(f"{other.call.operation} of {other.title}" for other in cases))
        return f"the ranks wait for each other in different groups: {waits}"
    if case.kind == "not_finished":
        held = f", and has not begun on {who}" if who else ""
        return f"all ranks arrived at {call}, and it does not finish{held}: check the network and the GPUs"
    reasons = {
        "ended": _grouped(case.ranks, absent, f"{'has' if len(case.ranks) == 1 else 'have'} ended"),
        "silent": _silent(case.ranks, absent),
        "unseen": f"who is missing must be among {who}, which this daemon does not see",
    }
    return f"{reasons[case.kind]}; {call} cannot finish"


def _mismatch(case: WaitCase, call: str) -> str:
    """Return who called what, and what the others did; the calls of all ranks if nothing shows which of them is right."""
    if case.call in case.others:
        by_call: dict[str, list[int]] = {}
        for rank, other in zip(sorted(case.ranks), case.others, strict=True):
            by_call.setdefault(f"{other.operation} with {other.shape or 'no tensor'}", []).append(rank)
        calls = " and ".join(f"{ranks_text(ranks)} called {other}" for other, ranks in by_call.items())
        return f"{calls} as number {number(case.call.sequence)} of {case.title}"
    if case.kind == "other_operation":
        others = " and ".join(dict.fromkeys(other.operation for other in case.others))
        return f"{ranks_text(case.ranks)} called {others} instead of {call}"
    others = " and ".join(dict.fromkeys(other.shape for other in case.others))
    return f"{ranks_text(case.ranks)} called {call} with {others} and the others with {case.call.shape}"


def _silent(ranks: Collection[int], absent: Absent) -> str:
    """Return clauses on ranks that did not answer, those for the same reason together."""
    return _grouped(ranks, absent, f"{NO_ANSWER}: stopped, or a call holds the GIL")


def _grouped(ranks: Collection[int], absent: Absent, unknown: str) -> str:
    """Return clauses on ranks without a dump, those for the same reason together; *unknown* is that of the others."""
    by_reason: dict[str, list[int]] = {}
    for rank in sorted(ranks):
        by_reason.setdefault(absent.reasons.get(rank, unknown), []).append(rank)
    return ", ".join(f"{ranks_text(of)} {reason}" for reason, of in by_reason.items())


def _wait(case: WaitCase) -> str:
    """Return a clause on those who only wait."""
    if not case.waiting or case.kind == "not_finished":
        return ""
    return f"; {ranks_text(case.waiting)} only {'waits' if len(case.waiting) == 1 else 'wait'}"


def _unknown(case: WaitCase, absent: Absent) -> str:
    """Return sentences on further ranks without a dump."""
    silent, unseen = absent.silent - case.ranks, absent.unseen - case.ranks
    return (f" No answer came from {ranks_text(silent)}." if silent else "") + (
        f" This daemon does not see {ranks_text(unseen)}." if unseen else ""
    )


def ranks_text(ranks: Collection[int]) -> str:
    """Return ``rank 3`` or ``ranks 0 to 3, 5 and 7``; of many ranges, only the first."""
    return f"rank{'s' if len(ranks) > 1 else ''} {ranges(ranks)}"


def is_or_are(ranks: Collection[int]) -> str:
    """Return ``rank 3 is`` or ``ranks 0 and 1 are``."""
    return f"{ranks_text(ranks)} {'are' if len(ranks) > 1 else 'is'}"


def places_text(dumps: Mapping[int, RankDump], ranks: Collection[int]) -> str:
    """Return ``rank 1 is at train.py:3 in load`` for these ranks, those at one place together; empty if unknown."""
    by_place: dict[str, list[int]] = {}
    for rank in sorted(ranks):
        if rank in dumps and dumps[rank].place:
            by_place.setdefault(dumps[rank].whereabouts, []).append(rank)
    busy = {rank for rank in ranks if rank in dumps and dumps[rank].busy}
    clauses = [
        f"{is_or_are(found)}{' busy' if busy.issuperset(found) else ''} at {place}"
        for place, found in list(by_place.items())[:NAMED_PLACES]
    ]
    return ", ".join(clauses)
