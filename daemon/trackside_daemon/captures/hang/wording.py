"""Words of a verdict about ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from trackside_daemon.captures.hang.dump import RankDump

NAMED = 8  # most ranges of ranks that a text names
PLACES = 3  # most places in the code that a text names


def ranks_text(ranks: Collection[int]) -> str:
    """Return ``rank 3`` or ``ranks 0 to 3, 5 and 7``; of many ranges, only the first."""
    spans: list[list[int]] = []
    for rank in sorted(ranks):
        if spans and rank == spans[-1][-1] + 1:
            spans[-1].append(rank)
        else:
            spans.append([rank])
    words = [text for span in spans for text in ([f"{span[0]} to {span[-1]}"] if len(span) > 2 else map(str, span))]
    if len(words) > NAMED:
        words[NAMED:] = ["more"]
    return f"rank{'s' if len(ranks) > 1 else ''} {' and '.join(filter(None, (', '.join(words[:-1]), words[-1])))}"


def is_or_are(ranks: Collection[int]) -> str:
    """Return ``rank 3 is`` or ``ranks 0 and 1 are``."""
    return f"{ranks_text(ranks)} {'are' if len(ranks) > 1 else 'is'}"


def places_text(dumps: Mapping[int, RankDump], ranks: Collection[int]) -> str:
    """Return ``rank 1 is at train.py:3 in load`` for these ranks, those at one place together; empty if unknown."""
    by_place: dict[str, list[int]] = {}
    for rank in sorted(ranks):
        if rank in dumps and dumps[rank].place:
            inner = f" ({dumps[rank].inner})" if dumps[rank].inner else ""
            by_place.setdefault(f"{dumps[rank].place}{inner}", []).append(rank)
    clauses = [f"{is_or_are(found)} at {place}" for place, found in list(by_place.items())[:PLACES]]
    return ", ".join(clauses)
