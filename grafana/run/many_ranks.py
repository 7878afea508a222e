"""Queries over all ranks of a run of any size: of one with more ranks than limits.ranks, the page has statistics."""

from __future__ import annotations


def over_ranks(family: str, statistic: str) -> str:
    """Return a selector for a statistic over the ranks of a run that has more ranks than limits.ranks; no series of others."""
    return f'trackside_training_rank_statistic{{RUN, family="{family}", statistic="{statistic}"}}'


def total_rate(family: str, ranks: str) -> str:
    """Return a query for the increase of a counter per second, over all ranks of a run of any size."""
    ofs = f"{over_ranks(family, 'sum')}[$__rate_interval]", f"{family}{{{ranks}}}[$__rate_interval]"
    return " or ".join(f"sum(rate({one}))" for one in ofs)
