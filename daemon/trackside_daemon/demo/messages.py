"""What the demo says, but for what goes wrong: an introduction, a line now and then, a summary."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trackside_daemon.demo.troubles import TROUBLES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trackside_daemon.demo.options import Wanted

Numbers = dict[str, float]
"""A rank's series without labels of their own, by name without ``trackside_training_``."""


MANY = 1e6


def introduction(address: str, token: str, wanted: Wanted) -> str:
    """What runs, where it is seen, and what will go wrong."""
    if wanted.ranks:
        many = "a simulated rank trains" if wanted.ranks == 1 else f"{wanted.ranks} simulated ranks train"
        beside = f"{many}: as long, as often and as badly as real ones would, without computing"
    else:
        beside = "a small language model learns to write Python's help pages"
    return (
        f"""
  trackside is running, and beside it {beside}.

    dashboard   http://{address}/#token={token}
    metrics     http://{address}/metrics
    try         curl -s http://{address}/metrics | grep trackside_training
    scrape      scrape_configs: [{{job_name: trackside, static_configs: [{{targets: ["{address}"]}}]}}]
"""
        + _of_gpus(wanted)
        + _foretelling(wanted)
        + "\n  Ctrl-C ends it. What /metrics says now and then:\n"
    )


def _of_gpus(wanted: Wanted) -> str:
    count = wanted.simulated_gpus()
    if not count:
        return ""
    why = "" if wanted.ranks or wanted.gpus else "No NVIDIA driver here, so "
    return f"\n  {why}{count} GPU{'s are' if count > 1 else ' is'} simulated, and marked so in trackside_gpu_info.\n"


def _foretelling(wanted: Wanted) -> str:
    if not wanted.trouble:
        return ""
    trouble = TROUBLES[wanted.trouble]
    note = f"  {trouble.note}\n" if trouble.note else ""
    told = " or ".join(trouble.alerts)
    return f"\n  After {wanted.after:g} s of training it goes wrong: {told} is what tells it.\n{note}"


def report(ranks: Sequence[Numbers]) -> str:
    """A line of how far the training is: steps and pace of the first rank, the others' means."""
    if not ranks or "step" not in ranks[0]:
        return "  the training is starting"
    numbers = ranks[0]
    steps, seconds = numbers.get("step_duration_seconds_count", 0.0), numbers.get("step_duration_seconds_sum", 0.0)
    pace = f"{1000 * seconds / steps:6.1f} ms a step" if steps else ""
    loss, norm = short(mean(ranks, "loss")), short(mean(ranks, "grad_norm"))
    return f"  step {numbers['step']:6.0f}   loss {loss:>6}   grad_norm {norm:>6}   {pace}"


def summary(ranks: Sequence[Numbers], seconds: float) -> str:
    """The last word: steps are the first rank's, the loss the mean, the rest all ranks' together."""
    if not ranks or "loss" not in ranks[0]:
        return f"\n  It ended after {seconds:.0f} s, before the first step."

    def total(name: str) -> float:
        return sum(numbers.get(name, 0.0) for numbers in ranks)

    of = f" of {len(ranks)} ranks" if len(ranks) > 1 else ""
    return (
        f"\n  {ranks[0].get('steps_total', 0):.0f} steps{of} and {total('tokens_total'):,.0f} tokens in {seconds:.0f} s;"
        f" last loss {short(mean(ranks, 'loss'))};"
        f" {total('client_pushes_total'):.0f} pushes, {total('client_dropped_total'):.0f} values dropped,"
        f" {total('client_overhead_seconds_total'):.2f} s of CPU for sending them."
    )


def short(number: float) -> str:
    """One that may be on its way to infinity."""
    return f"{number:.3f}" if abs(number) < MANY else f"{number:.4g}"


def mean(ranks: Sequence[Numbers], name: str) -> float:
    """Over the ranks that tell it; 0 where none does."""
    told = [numbers[name] for numbers in ranks if name in numbers]
    return sum(told) / len(told) if told else 0.0
