"""The settings of alerts: thresholds of the built-in ones, custom rules and sinks."""

import json
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from trackside.roles import ROLES, is_role
from trackside_daemon.alerts.sinks.settings import SinksSection
from trackside_daemon.config.near import explain, near_name
from trackside_daemon.config.section import Section
from trackside_daemon.detectors.key_roles import KeyRoles
from trackside_daemon.detectors.settings import STALL_AFTER, STRAGGLER_WINDOW, DetectorThresholds
from trackside_daemon.model.setting_types import Pattern, Seconds, Texts, bound, setting, share
from trackside_daemon.model.text import seconds, size_bytes


class RuleThresholds(Section):
    """Thresholds of the built-in rules."""

    gpu_hot_margin_celsius: float = bound("GpuHot: minimum distance from the slowdown temperature, in degrees.", 5.0)
    gpu_hot_celsius: float = bound(
        "GpuHot: maximum temperature of GPUs that do not report their slowdown temperature.", 86.5
    )
    gpu_throttled_ratio: float = share("GpuThrottled: share of a minute with reduced clocks.", 0.5)
    gpu_power_capped_ratio: float = share("GpuPowerCapped: share of ten minutes at the power limit.", 0.9)
    nvlink_errors: float = bound("NvlinkDegraded: corrected errors in ten minutes.", 100.0)
    gpu_memory_ratio: float = share("GpuMemoryPressure: share of a GPU's memory in use.", 0.97)
    gpu_underutilized_ratio: float = share("GpuUnderutilized: minimum utilisation of a GPU during training.", 0.3)
    gpu_held_bytes: Annotated[int, BeforeValidator(size_bytes), Field(ge=0.0, le=1e18)] = setting(
        "GpuIdleButHeld: memory in use on an idle GPU, such as 5GB.", 5 * 10**9
    )
    host_memory_ratio: float = share("HostMemoryPressure: minimum share of memory that is available.", 0.05)
    host_memory_bytes: Annotated[int, BeforeValidator(size_bytes), Field(ge=0.0, le=1e18)] = setting(
        "HostMemoryPressure: available memory above which it does not fire.", 16 * 2**30
    )
    host_memory_stalled_ratio: float = share("HostMemoryPressure: share of time lost waiting for memory.", 0.1)
    container_memory_ratio: float = share(
        "ContainerMemoryPressure: share of a container's limit in use, without cached files.", 0.95
    )
    disk_ratio: float = share("DiskFilling: minimum share of a file system that is free.", 0.05)
    disk_bytes: Annotated[int, BeforeValidator(size_bytes), Field(ge=0.0, le=1e18)] = setting(
        "DiskFilling: free space above which its share does not count.", 100 * 10**9
    )
    disk_full_in: Annotated[Seconds, Field(ge=0)] = setting(
        "DiskFilling: time until a file system is full, at the rate of the last hour.", 4 * 3600.0
    )
    shm_ratio: float = share("ShmFull: share of /dev/shm in use.", 0.9)
    fds_ratio: float = share("FdsExhausted: share of the file descriptors in use.", 0.9)
    io_stalled_ratio: float = share("IoBottleneck: share of time in which all tasks waited for I/O.", 0.2)
    cpu_waiting_ratio: float = share("CpuSaturated: share of time in which a task waited for a CPU.", 0.5)
    cpu_throttled_ratio: float = share(
        "CpuSaturated: share of periods in which a container reached its CPU limit.", 0.25
    )
    ray_object_store_ratio: float = share("RayObjectStoreFull: share of an object store in use.", 0.9)
    ray_actor_restarts: float = bound("RayActorsRestarting: restarts in ten minutes.", 3.0)


class ThresholdsSection(DetectorThresholds, RuleThresholds):
    """Thresholds of all built-in alerts, of rules and of detectors."""

    performance_ratio: float = bound(
        "PerformanceRegression: duration of steps, as a multiple of the baseline's.", 1.05, least=1.0
    )


Number = Annotated[float, Field(allow_inf_nan=False)]
Window = Annotated[Seconds, Field(ge=1)]


class OverSection(Section):
    """The metric that divides a rule's value."""

    metric: str
    labels: dict[str, str] = Field(default_factory=dict)


class RuleSection(Section):
    """One custom rule."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    alert: Annotated[Pattern, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
    metric: Annotated[str, Field(pattern=r"^(key:.+|(family:)?[a-zA-Z_:][a-zA-Z0-9_:]*)$")]
    labels: dict[str, str] = Field(default_factory=dict)
    above: Number | None = None
    below: Number | None = None
    absent: bool = False
    rate: Window | None = None
    change: Window | None = None
    mean: Window | None = None
    over: OverSection | None = None
    relative_to: Literal["best", "start", "baseline"] | None = None
    for_steps: Annotated[int, Field(ge=0)] = 0
    lasting: Annotated[Seconds, Field(ge=0, alias="for")] = 0.0
    keep_firing_for: Annotated[Seconds, Field(ge=0)] = 0.0
    cooldown: Annotated[Seconds, Field(ge=0)] = 0.0
    severity: Literal["info", "warning", "critical"] = "warning"
    summary: str = ""
    description: str = ""

    def __str__(self) -> str:
        labels = ", ".join(f"{name}={value}" for name, value in self.labels.items())
        series = f"{self.metric}{{{labels}}}" if labels else self.metric
        if self.over is not None:
            series += f" over {self.over.metric}"
        for function, window in (("rate", self.rate), ("change", self.change), ("mean", self.mean)):
            if window is not None:
                series = f"{function} of {series} in {window:g}s"
        if self.relative_to is not None:
            series += f" relative to its {self.relative_to}"
        bound = "absent" if self.absent else f"above {self.above:g}" if self.above is not None else ""
        lasting = f" for {self.lasting:g}s" if self.lasting else ""
        lasting += f" for {self.for_steps} steps" if self.for_steps else ""
        return f"{self.alert} ({series} {bound or f'below {self.below:g}'}{lasting})"

    @model_validator(mode="after")
    def _one_condition(self) -> "RuleSection":
        bounds = [name for name in ("above", "below") if getattr(self, name) is not None]
        bounds += ["absent"] * self.absent
        if len(bounds) != 1:
            present = " and ".join(bounds) or "none"
            raise ValueError(f"exactly one condition of above, below and absent is needed, got {present}")
        functions = [name for name in ("rate", "change", "mean") if getattr(self, name) is not None]
        if self.relative_to is not None and (self.change is not None or self.absent):
            functions.append("relative-to")
        if self.over is not None and self.absent:
            functions.append("over")
        if len(functions) > 1 or (functions and self.absent):
            raise ValueError(f"{' and '.join([*functions, *bounds])} cannot be combined")
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
        raise ValueError(f"rule {name}: {_first_error(error)}") from None


def _first_error(error: ValidationError) -> str:
    """Return the first error of a rule, and the remedy."""
    problem = error.errors()[0]
    keys = [str(part).replace("_", "-") for part in problem["loc"] if part != "float"]
    key, kind = ".".join(keys), problem["type"]
    if kind == "extra_forbidden":
        model = OverSection if keys[0] == "over" else RuleSection
        valid = [field.alias or name.replace("_", "-") for name, field in model.model_fields.items()]
        return f"{key}: no such key{near_name(keys[-1], valid, 'there are ' + ', '.join(valid))}"
    if kind == "string_pattern_mismatch":
        return f"{key}: {_PATTERNS[keys[-1]].format(problem['input'])}, got {problem['input']!r:.80}"
    return f"{key}: {explain(problem)}" if key else explain(problem, secret=True)


# Requirement of each key that has a pattern.
_PATTERNS = {
    "alert": "a name consists of letters, digits and _, and does not begin with a digit",
    "metric": "a family of docs/metrics.md is expected, or key:{} for a pushed key",
}


def _rules(values: object) -> object:
    """Return the rules, checked one by one, so that an error names its rule; a variable has them as JSON."""
    if isinstance(values, str):
        try:
            values = json.loads(values)
        except (ValueError, RecursionError):
            raise ValueError(f"{values!r:.80} is not a JSON list of rules") from None
    if isinstance(values, (list, tuple)):
        return [rule if isinstance(rule, RuleSection) else _rule(rule, at) for at, rule in enumerate(values)]
    return values


def _roles(values: tuple[str, ...]) -> tuple[str, ...]:
    for value in values:
        if not is_role(*value.rpartition("=")[::2]):
            raise ValueError(f"{value!r:.80} is not KEY=ROLE, where ROLE is one of {', '.join(ROLES)}")
    return values


_NAMES = ("user", "k8s_namespace", "partition", "tag")  # what a condition can compare with a pattern


def _conditions(values: tuple[str, ...]) -> tuple[str, ...]:
    for value in values:
        name, _, wanted = value.partition("=")
        try:
            known = (
                float(str(seconds(wanted) if name == "age" else wanted)) >= 0 if name in {"age", "ranks"} else wanted
            )
        except ValueError:
            known = False
        if value not in {"all", "own"} and not (name in (*_NAMES, "age", "ranks") and known):
            raise ValueError(
                f"{value!r:.80} is not all, own, ranks=NUMBER, age=DURATION, or one of {', '.join(_NAMES)}, = and a pattern"
            )
    return values


class AlertsSection(Section):
    """Detectors, rules and notifications."""

    enabled: bool = setting("Whether detectors and rules run.", True)
    off: Texts = setting(
        "Alerts to turn off, such as LossPlateau, or SlowStep@debug-* for runs with such a name.",
        (),
        examples=["LossPlateau,SlowStep@debug-*"],
    )
    page: Annotated[Texts, AfterValidator(_conditions)] = setting(
        "Runs whose alerts may be critical, not warnings at most. Any of: all, own (of the daemon's user), tag=page "
        "(of init(page=True)), ranks=64, age=6h, user=, k8s_namespace= or partition= with a pattern.",
        ("own", "tag=page"),
        examples=["own,tag=page,ranks=64,age=6h,partition=prod*"],
    )
    tags: Texts = setting(
        "Tags that alerts have in their label tags, if their run has them.", (), examples=["team-a,team-b"]
    )
    roles: Annotated[Texts, AfterValidator(_roles)] = setting(
        "Roles of pushed keys, such as loss=objective; keys may have * and ?.",
        (),
        examples=["loss=objective,*/score=reward"],
    )
    stall_after: Annotated[Seconds, Field(ge=1)] = setting(
        "Least time without a step after which a run counts as stalled; its pace may extend it.", STALL_AFTER
    )
    straggler_window: Annotated[Seconds, Field(ge=0.1)] = setting(
        "Length of one comparison of a run's ranks; a straggler is slow in 30 of the last 50.", STRAGGLER_WINDOW
    )
    thresholds: ThresholdsSection = ThresholdsSection.model_construct()
    sinks: SinksSection = SinksSection.model_construct()
    rules: Annotated[tuple[RuleSection, ...], BeforeValidator(_rules)] = setting(
        "Custom rules, in the YAML file: alert, metric, a condition and texts.",
        (),
        examples=["[{alert: LossHigh, metric: 'key:loss', above: 5}]"],
    )


def key_roles(section: AlertsSection) -> KeyRoles:
    """Return the roles of keys for runs that do not state others."""
    return KeyRoles([(pattern, role) for pattern, _, role in (value.rpartition("=") for value in section.roles)])
