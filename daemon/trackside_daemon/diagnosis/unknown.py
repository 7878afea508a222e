"""List what a diagnosis could not measure, and why: an absent cause is not a cause that was ruled out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trackside.totals.phases import SAVES
from trackside_daemon.model.families import cgroup, host
from trackside_daemon.model.families import gpu as gpu_families
from trackside_daemon.model.time_ledger import SYNC_PHASES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from trackside_daemon.causes.facts import Facts


def unknown(facts: Facts, joules: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what is unknown, each with the reason and how to measure it."""
    phases = {phase for span in facts.spans for phase in span.phases}
    gpus = bool(facts.of(gpu_families.UTILIZATION))
    if "data" not in phases:
        yield "data wait", "no phase `data`: wrap the loader in run.data(loader), or use run.watch or an integration"
    if facts.ranks > 1 and phases.isdisjoint({"forward", *SYNC_PHASES}):
        yield "wait for the slowest rank", "the ranks report no phases: use run.watch(model)"
    if phases.isdisjoint(SAVES):
        yield "checkpoints", 'no phase `checkpoint`: save within run.phase("checkpoint")'
    if gpus and not any(span.busy is not None for span in facts.spans):
        yield "what GPUs hide", "no rank was seen on a GPU, so that waits count in full"
    if not gpus:
        yield "GPUs", "no GPU was read in the time of the run"
    elif facts.profile is None:
        yield "waits within steps", f"no profile: trackside capture {facts.run['name']}"
    if not facts.of(host.MEMORY_STALLED) and not facts.of(cgroup.STALLED):
        yield "memory and storage pressure", "the kernel has no /proc/pressure"
    missing = [gpu for gpu, value in joules["gpus"].items() if value is None]
    if missing:
        yield "energy", f"no counter on GPU {', '.join(missing)}"
    elif joules["gpu_joules"] is None and joules["cpu_joules"] is None:
        yield "energy", "no counter of a GPU or a CPU"
