"""The daemon's configuration, composed of the settings that each package owns."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from trackside_daemon.alerts.settings import AlertsSection
from trackside_daemon.bridges.settings import BridgesSection, FleetSection
from trackside_daemon.captures.settings import CaptureSection
from trackside_daemon.checkpoints.settings import CheckpointSection
from trackside_daemon.collectors.settings import CollectorsSection, PathSection
from trackside_daemon.config.loading import ConfigError, Settings
from trackside_daemon.config.section import Section
from trackside_daemon.diagnosis.settings import CostSection, ReportsSection
from trackside_daemon.history.settings import StorageSection
from trackside_daemon.ingest.settings import PushSection
from trackside_daemon.sampling.settings import SampleSection
from trackside_daemon.training.settings import LimitsSection, RunSection
from trackside_daemon.web.settings import OtlpInSection, WebSection

_WEB_CONFIG_KEYS = ("tls_server_config", "http_server_config", "basic_auth_users", "basic_auth_roles", "rate_limit")
# By name: what each root is, and a file that proves it.
_ROOTS = {"procfs": ("procfs", "stat"), "sysfs": ("sysfs", "class"), "rootfs": ("directory", "")}


class LogSection(Section):
    """The log, on standard error."""

    level: Annotated[
        Literal["debug", "info", "warning", "error"], Field(description="debug, info, warning or error.")
    ] = "info"
    format: Annotated[Literal["logfmt", "json"], Field(description="logfmt or json.")] = "logfmt"


class Config(Settings):
    """All settings of the daemon."""

    misplaced: ClassVar[Mapping[str, str]] = dict.fromkeys(
        _WEB_CONFIG_KEYS, "it belongs in a web configuration, the file of --web.config.file"
    )

    sample: SampleSection = SampleSection.model_construct()
    path: PathSection = PathSection.model_construct()
    run: RunSection = RunSection.model_construct()
    web: WebSection = WebSection.model_construct()
    push: PushSection = PushSection.model_construct()
    otlp: OtlpInSection = OtlpInSection.model_construct()
    storage: StorageSection = StorageSection.model_construct()
    log: LogSection = LogSection.model_construct()
    collector: CollectorsSection = CollectorsSection.model_construct()
    limits: LimitsSection = LimitsSection.model_construct()
    alerts: AlertsSection = AlertsSection.model_construct()
    cost: CostSection = CostSection.model_construct()
    reports: ReportsSection = ReportsSection.model_construct()
    capture: CaptureSection = CaptureSection.model_construct()
    checkpoint: CheckpointSection = CheckpointSection.model_construct()
    bridges: BridgesSection = BridgesSection.model_construct()
    fleet: FleetSection = FleetSection.model_construct()
    require_gpu: Annotated[bool, Field(description="Do not start without a GPU.")] = False


def needs_restart(old: Config, new: Config) -> list[str]:
    """Return the names of the settings that differ and that a running daemon cannot change."""
    whole = (
        "path",
        "web",
        "push",
        "otlp",
        "collector",
        "limits",
        "capture",
        "checkpoint",
        "bridges",
        "fleet",
        "reports",
    )
    changed = [name for name in whole if getattr(new, name) != getattr(old, name)]
    single = {
        "storage": ("path", "jsonl", "synchronous", "media", "min_free"),
        "alerts": ("enabled", "stall_after", "thresholds", "rules"),
    }
    return changed + [
        f"{section}.{name}"
        for section, names in single.items()
        for name in names
        if getattr(getattr(new, section), name) != getattr(getattr(old, section), name)
    ]


def check_roots(path: PathSection) -> None:
    """Check the host's directories that were set; defaults pass even if this machine lacks them.

    Raises:
        ConfigError: The first error, in one line.
    """
    for name, (kind, sign) in _ROOTS.items():
        root = Path(getattr(path, name))
        default = PathSection.model_fields[name].default
        if str(root) == default or (root.is_dir() and (root / sign).exists()):
            continue
        reason = f"it has no {sign}" if root.is_dir() else "it is a file" if root.exists() else "it does not exist"
        raise ConfigError(
            f"path.{name}: {root} is no {kind}: {reason}; set it to where the host's {default} is mounted"
        )
