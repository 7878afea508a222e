"""Texts that the demo prints: an introduction, a progress line every few seconds, and a summary."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trackside_daemon.demo.troubles import TROUBLES
from trackside_daemon.model.families import gpu
from trackside_daemon.model.families.training import PREFIX
from trackside_daemon.model.text import percent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trackside_daemon.demo.options import DemoOptions

RankValues = dict[str, float]
"""Values of a rank's series without labels other than run and rank, by name without ``trackside_training_``."""


LARGE = 1e6


def introduction(address: str, token: str, options: DemoOptions) -> str:
    """Return what runs, where to see it, and the trouble to expect."""
    if options.ranks:
        ranks = "a simulated rank trains" if options.ranks == 1 else f"{options.ranks} simulated ranks train"
        training = f"{ranks}, without real computation"
    else:
        training = "a small language model learns to write Python's help pages"
    return (
        f"""
  trackside is running. Next to it, {training}.

    dashboard   http://{address}/#token={token}
    metrics     http://{address}/metrics
    try         curl -s http://{address}/metrics | grep {PREFIX[:-1]}
    scrape      scrape_configs: [{{job_name: trackside, static_configs: [{{targets: ["{address}"]}}]}}]
"""
        + _gpu_note(options)
        + _trouble_note(options)
        + "\n  Press Ctrl-C to end the demo. Progress, from /metrics:\n"
    )


def _gpu_note(options: DemoOptions) -> str:
    count = options.simulated_gpus()
    if not count:
        return ""
    reason = "" if options.ranks or options.gpus else "There is no NVIDIA driver here, so "
    gpus = "GPUs are" if count > 1 else "GPU is"
    return f'\n  {reason}{count} {gpus} simulated: {gpu.INFO.name} has source="simulated".\n'


def _trouble_note(options: DemoOptions) -> str:
    if not options.trouble:
        return ""
    trouble = TROUBLES[options.trouble]
    note = f"  {trouble.note}\n" if trouble.note else ""
    alerts = " or ".join(trouble.alerts)
    return f"\n  After {options.after:g} s of training it goes wrong. Expect the alert {alerts}.\n{note}"


def progress(ranks: Sequence[RankValues]) -> str:
    """Return a line of progress: step and pace of the first rank, means over all ranks of the rest."""
    if not ranks or "step" not in ranks[0]:
        return "  the training is starting"
    first = ranks[0]
    steps = first.get("step_duration_seconds_count", 0.0)
    seconds = first.get("step_duration_seconds_sum", 0.0)
    pace = f"{1000 * seconds / steps:6.1f} ms per step" if steps else ""
    loss = format_number(mean(ranks, "loss"))
    norm = format_number(mean(ranks, "grad_norm"))
    return f"  step {first['step']:6.0f}   loss {loss:>6}   grad_norm {norm:>6}   {pace}"


def summary(ranks: Sequence[RankValues], seconds: float) -> str:
    """Return the last line: steps of the first rank, the mean loss, totals over all ranks of the rest."""
    if not ranks or "loss" not in ranks[0]:
        return f"\n  The demo ended after {seconds:.0f} s, before the first step."

    def total(name: str) -> float:
        return sum(values.get(name, 0.0) for values in ranks)

    of_ranks = f" of {len(ranks)} ranks" if len(ranks) > 1 else ""
    return (
        f"\n  {ranks[0].get('steps_total', 0):.0f} steps{of_ranks} and {total('tokens_total'):,.0f} tokens"
        f" in {seconds:.0f} s; last loss {format_number(mean(ranks, 'loss'))};"
        f" {total('client_pushes_total'):.0f} pushes, {total('client_dropped_total'):.0f} values dropped,"
        f" sending took {percent(total('client_overhead_seconds_total') / seconds / len(ranks))} of a CPU core per rank."
    )


def format_number(number: float) -> str:
    """Return a short text even of a loss that grows towards infinity."""
    return f"{number:.3f}" if abs(number) < LARGE else f"{number:.4g}"


def mean(ranks: Sequence[RankValues], name: str) -> float:
    """Return the mean over the ranks that have the series; 0 if none has."""
    values = [rank[name] for rank in ranks if name in rank]
    return sum(values) / len(values) if values else 0.0
