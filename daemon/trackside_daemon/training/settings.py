"""The settings of runs and of what `/metrics` shows of them."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from trackside_daemon.config.section import Section
from trackside_daemon.linux.process_limits import WORKER_BYTES
from trackside_daemon.model.setting_types import Seconds, Texts, setting
from trackside_daemon.model.text import size_bytes


class RunSection(Section):
    """Ended runs."""

    linger: Annotated[Seconds, Field(ge=0)] = setting("How long an ended run's series stay on /metrics.", 60.0)


class LimitsSection(Section):
    """Limits of what `/metrics` shows at once, beyond which it is counted and left out, and of worker processes."""

    profile: Literal["full", "cluster"] = setting(
        "Series of /metrics: full, or cluster without those that no rule reads.", "full"
    )
    runs: int = setting("Live runs on /metrics at once.", 64, ge=1)
    ranks: int = setting("Ranks of a run with series of their own; of more there are statistics.", 64, ge=1)
    keys: int = setting("Keys, and values of layers, for each rank of a run.", 1000, ge=1)
    series: int = setting("Series of such keys and values in total.", 10_000, ge=1)
    label_bytes: int = setting("Length of a label's value in bytes of UTF-8.", 256, ge=16)
    worker_memory: Annotated[int, BeforeValidator(size_bytes), Field(ge=128 << 20)] = setting(
        "Memory of each process that reads traces or checkpoints or writes reports; at most a quarter of the daemon's "
        "cgroup.",
        WORKER_BYTES,
    )
    layers: Texts = setting("Layers of observed models on /metrics, by name with * and ?, such as *.mlp.", ())
