"""The settings of runs and of what `/metrics` shows of them."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from trackside_daemon.config.section import Section
from trackside_daemon.linux.process_limits import WORKER_BYTES
from trackside_daemon.model.families import training
from trackside_daemon.model.setting_types import Seconds, Texts
from trackside_daemon.model.text import size_bytes


class RunSection(Section):
    """Ended runs."""

    linger: Annotated[Seconds, Field(ge=0, description="How long an ended run's series stay on /metrics.")] = 60.0


class LimitsSection(Section):
    """Limits of what `/metrics` shows at once, beyond which it is counted and left out, and of worker processes."""

    runs: Annotated[int, Field(ge=1, description="Live runs on /metrics at once.")] = 64
    ranks: Annotated[
        int, Field(ge=1, description="Ranks of a run with series of their own; of more ranks there are statistics.")
    ] = 64
    keys: Annotated[
        int, Field(ge=1, description=f"Keys on {training.VALUE.name} and values of layers, for each rank of a run.")
    ] = 1000
    series: Annotated[int, Field(ge=1, description="Series of such keys and values in total.")] = 10_000
    label_bytes: Annotated[int, Field(ge=16, description="Length of a label's value in bytes of UTF-8.")] = 256
    worker_memory: Annotated[
        int,
        BeforeValidator(size_bytes),
        Field(
            ge=128 << 20,
            description="Memory of each process that reads traces or checkpoints, or writes reports; at most a quarter of what the cgroup of the daemon allows.",
        ),
    ] = WORKER_BYTES
    layers: Annotated[
        Texts,
        Field(
            description="Layers of observed models on /metrics, by name with * and ?, such as *.mlp; none without it."
        ),
    ] = ()
