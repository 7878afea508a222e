"""The settings of alerts: the thresholds of those that are built in, and rules of the user's own."""

from __future__ import annotations

import difflib
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from trackside_daemon.alerts.sinks.settings import SinksSection
from trackside_daemon.config.sections import Section
from trackside_daemon.model.setting_types import Pattern, Seconds, Texts, size_bytes


def _bound(what: str, *, least: float = 0.0, most: float = 1e18) -> Any:
    return Field(ge=least, le=most, allow_inf_nan=False, description=what)


def _share(what: str) -> Any:
    return _bound(what, most=1.0)


class ThresholdsSection(Section):
    """Where what is built in begins to be wrong; what is longer, more or hotter than that is told."""

    gpu_hot_margin_celsius: Annotated[float, _bound("GpuHot: degrees below the slowdown that are too few.")] = 5.0
    gpu_hot_celsius: Annotated[
        float, _bound("GpuHot: temperature that is too high, of GPUs that do not tell when they slow down.")
    ] = 86.5
    gpu_throttled_ratio: Annotated[float, _share("GpuThrottled: share of a minute with clocks kept down.")] = 0.5
    gpu_power_capped_ratio: Annotated[float, _share("GpuPowerCapped: share of ten minutes at the power limit.")] = 0.9
    nvlink_errors: Annotated[float, _bound("NvlinkDegraded: corrected errors in ten minutes.")] = 100.0
    gpu_memory_ratio: Annotated[float, _share("GpuMemoryPressure: share of a GPU's memory in use.")] = 0.97
    gpu_underutilized_ratio: Annotated[
        float, _share("GpuUnderutilized: utilisation of a GPU under training that is too low.")
    ] = 0.3
    gpu_held_bytes: Annotated[
        int,
        BeforeValidator(size_bytes),
        _bound("GpuIdleButHeld: memory that a GPU without work may hold, such as 5GB."),
    ] = 5 * 10**9
    host_memory_ratio: Annotated[float, _share("HostMemoryPressure: share of memory that should be available.")] = 0.05
    host_memory_stalled_ratio: Annotated[
        float, _share("HostMemoryPressure: share of time that may be lost by waiting for memory.")
    ] = 0.1
    container_memory_ratio: Annotated[
        float, _share("ContainerMemoryPressure: share of a container's limit in use, without cached files.")
    ] = 0.95
    disk_ratio: Annotated[float, _share("DiskFilling: share of a file system that should be free.")] = 0.05
    disk_full_in: Annotated[
        Seconds,
        Field(
            ge=0, description="DiskFilling: a file system that is full within this time, as it filled in the last hour."
        ),
    ] = 4 * 3600.0
    shm_ratio: Annotated[float, _share("ShmFull: share of /dev/shm in use.")] = 0.9
    fds_ratio: Annotated[float, _share("FdsExhausted: share of the file descriptors in use.")] = 0.9
    io_stalled_ratio: Annotated[
        float, _share("IoBottleneck: share of time in which nothing got on for want of IO.")
    ] = 0.2
    cpu_waiting_ratio: Annotated[float, _share("CpuSaturated: share of time in which something waited for a CPU.")] = (
        0.5
    )
    cpu_throttled_ratio: Annotated[
        float, _share("CpuSaturated: share of periods in which a container's CPU limit was reached.")
    ] = 0.25
    leak_ratio: Annotated[
        float, _share("HostMemoryLeak, GpuMemoryLeak: growth that is looked at, as a share of what is held.")
    ] = 0.03
    loss_spike_scales: Annotated[
        float, _bound("LossSpike, LossHardBatch: robust standard deviations by which a loss stands out.")
    ] = 8.5
    loss_spike_ratio: Annotated[
        float,
        _bound(
            "LossSpike, LossHardBatch: part of its level by which a loss stands out; less where it has more scales."
        ),
    ] = 0.17
    loss_diverging_ratio: Annotated[float, _bound("LossDiverging: rise above the lowest level, as a part of that.")] = (
        0.15
    )
    loss_plateau_ratio: Annotated[float, _share("LossPlateau: gain that is none, as a part of the loss.")] = 0.002
    gradient_explosion_ratio: Annotated[
        float, _bound("GradientExplosion: times the usual norm that are too much.", least=1.0)
    ] = 3.0
    gradient_vanishing_ratio: Annotated[
        float, _bound("GradientVanishing: how many times smaller than usual a norm is.", least=1.0)
    ] = 10.0
    learning_rate_most: Annotated[float, _bound("LearningRateOutOfRange: rate that is too high for anything.")] = 10.0
    learning_rate_jump_ratio: Annotated[
        float, _bound("LearningRateOutOfRange: times the rate before, at once.", least=1.0)
    ] = 100.0
    slow_step_ratio: Annotated[float, _bound("SlowStep: times the median of the steps before.", least=1.0)] = 1.5
    slow_step_scales: Annotated[
        float, _bound("SlowStep: robust standard deviations by which a step lies above the median.")
    ] = 9.0
    throughput_ratio: Annotated[float, _bound("ThroughputRegression: times what steps took before.", least=1.0)] = 1.08
    straggler_ratio: Annotated[
        float, _bound("StragglerRank: times what the median rank takes of its own for a step.", least=1.0)
    ] = 1.1
    data_wait_ratio: Annotated[
        float, _share("DataLoaderBottleneck: share of the time that is spent waiting for data.")
    ] = 0.3
    checkpoint_ratio: Annotated[
        float, _bound("CheckpointOverdue: times the usual time between two checkpoints.", least=1.0)
    ] = 2.0
    checkpoint_after: Annotated[
        Seconds, Field(ge=1, description="CheckpointOverdue: time without a checkpoint that is never too long.")
    ] = 600.0


Number = Annotated[float, Field(allow_inf_nan=False)]
Window = Annotated[Seconds, Field(ge=1)]


class OverSection(Section):
    """What a rule's value is divided by."""

    metric: str
    labels: dict[str, str] = Field(default_factory=dict)


class RuleSection(Section):
    """One rule of the user's own."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    alert: Annotated[Pattern, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
    metric: Annotated[str, Field(pattern=r"^(key:.+|[a-zA-Z_][a-zA-Z0-9_]*)$")]
    labels: dict[str, str] = Field(default_factory=dict)
    above: Number | None = None
    below: Number | None = None
    absent: bool = False
    rate: Window | None = None
    change: Window | None = None
    over: OverSection | None = None
    lasting: Annotated[Seconds, Field(ge=0, alias="for")] = 0.0
    keep_firing_for: Annotated[Seconds, Field(ge=0)] = 0.0
    cooldown: Annotated[Seconds, Field(ge=0)] = 0.0
    severity: Literal["info", "warning", "critical"] = "warning"
    summary: str = ""
    description: str = ""

    def __str__(self) -> str:
        chosen = ", ".join(f"{name}={value}" for name, value in self.labels.items())
        what = f"{self.metric}{{{chosen}}}" if chosen else self.metric
        if self.over is not None:
            what += f" over {self.over.metric}"
        for way, window in (("rate", self.rate), ("change", self.change)):
            if window is not None:
                what = f"{way} of {what} in {window:g}s"
        bound = "absent" if self.absent else f"above {self.above:g}" if self.above is not None else ""
        lasting = f" for {self.lasting:g}s" if self.lasting else ""
        return f"{self.alert} ({what} {bound or f'below {self.below:g}'}{lasting})"

    @model_validator(mode="after")
    def _one_condition(self) -> RuleSection:
        bounds = [name for name in ("above", "below") if getattr(self, name) is not None]
        bounds += ["absent"] * self.absent
        if len(bounds) != 1:
            found = " and ".join(bounds) or "none"
            raise ValueError(f"one condition of above, below and absent is needed, there is {found}")
        ways = [name for name in ("rate", "change", "over") if getattr(self, name) is not None]
        if len(ways) > 1 or (ways and self.absent):
            raise ValueError(f"{' and '.join([*ways, *bounds])} do not go together")
        return self


def _rule(values: object, at: int) -> object:
    if not isinstance(values, dict):
        return values
    name = values.get("alert", f"number {at + 1}")
    written = {str(key).replace("-", "_"): value for key, value in values.items()}
    over = written.get("over")
    if isinstance(over, str):
        written["over"] = {"metric": over}
    try:
        return RuleSection(**written)
    except ValidationError as error:
        raise ValueError(f"rule {name}: {_wrong(error)}") from None


def _wrong(error: ValidationError) -> str:
    """The first thing that is wrong with a rule, and what to write instead."""
    problem = error.errors()[0]
    keys = [str(part).replace("_", "-") for part in problem["loc"] if part != "float"]
    key, kind, got = ".".join(keys), problem["type"], f"got {problem['input']!r:.80}"
    if kind == "extra_forbidden":
        model = OverSection if keys[0] == "over" else RuleSection
        known = [field.alias or name.replace("_", "-") for name, field in model.model_fields.items()]
        near = difflib.get_close_matches(keys[-1], known, 1)
        return f"{key}: no such key; " + (f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}")
    if kind == "string_pattern_mismatch":
        return f"{key}: {_NAMED[keys[-1]].format(problem['input'])}, {got}"
    text = problem["msg"].removeprefix("Value error, ")
    said = f"{key}: {text[0].lower()}{text[1:]}" if key else text
    return said if not key or kind in ("missing", "value_error") else f"{said}, {got}"


_NAMED = {
    "alert": "a name has letters, digits and _, and begins with no digit",
    "metric": "a family of docs/metrics.md is expected, or key:{} for a key that is pushed",
}
"""What a text should be that does not fit its pattern."""


def _rules(values: object) -> object:
    """Each by itself, so that what is wrong is said of the rule by its name."""
    if isinstance(values, (list, tuple)):
        return [one if isinstance(one, RuleSection) else _rule(one, at) for at, one in enumerate(values)]
    return values


class AlertsSection(Section):
    """What is told when something goes wrong."""

    enabled: Annotated[bool, Field(description="Whether trouble is looked for.")] = True
    off: Annotated[
        Texts,
        Field(
            description="Alerts that are not wanted, such as LossPlateau, or SlowStep@debug-* for runs that are called so."
        ),
    ] = ()
    stall_after: Annotated[
        Seconds,
        Field(
            ge=1,
            description="The least time without a step after which a run is stalled; beyond that its own pace decides.",
        ),
    ] = 60.0
    straggler_window: Annotated[
        Seconds,
        Field(
            ge=0.1,
            description="The time in which the ranks of a run are compared once; a straggler is slow in 30 of the last 50.",
        ),
    ] = 10.0
    thresholds: ThresholdsSection = ThresholdsSection()
    sinks: SinksSection = SinksSection()
    rules: Annotated[
        tuple[RuleSection, ...],
        BeforeValidator(_rules),
        Field(description="Rules of your own, in the YAML file: alert, metric, a condition, and what to say."),
    ] = ()
