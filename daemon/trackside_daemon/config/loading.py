"""The configuration: a YAML file, ``TRACKSIDE_*`` variables and flags, the later over the earlier.

A setting has one name everywhere: ``sample.interval`` is ``sample: {interval: …}`` in the file,
``TRACKSIDE_SAMPLE__INTERVAL`` in the environment and ``--sample.interval`` on the command line.
"""

from __future__ import annotations

import difflib
import logging
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, cast

from pydantic import BaseModel, Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, EnvSettingsSource, InitSettingsSource, SettingsConfigDict

from trackside_daemon.alerts.settings import AlertsSection
from trackside_daemon.config.sections import (
    CollectorsSection,
    GpuSection,
    LimitsSection,
    LogSection,
    PathSection,
    PushSection,
    RunSection,
    SampleSection,
    StorageSection,
    WebSection,
)
from trackside_daemon.config.yaml import YamlError, parse
from trackside_daemon.model.setting_types import seconds
from trackside_daemon.nvml.simulation.faults import assigned

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from pydantic_settings import PydanticBaseSettingsSource

PREFIX = "TRACKSIDE_"
CLIENT_VARIABLES = frozenset(
    PREFIX + name
    for name in ("RUN_ID", "RUN_NAME", "TAGS", "DISABLED", "ENDPOINT", "SPOOL", "FLUSH_TIMEOUT", "KEY_FILE", "LAUNCH")
)
"""What the client owns; set for a whole job, the daemon sees them too."""
NVML_LOCK = PREFIX + "NVML_LOCK"
"""Read by the NVML worker alone: see nvml/lock.py."""
WEB_CREDENTIALS = PREFIX + "WEB__CREDENTIALS_FILE"
"""Read by our commands alone: see commands/credentials.py."""

_LISTS = {
    "web.allowed-hosts": "node1,node1.cluster",
    "push.endpoint": "ipc:///run/trackside/push.sock",
    "collector.filesystem.paths": "/,/data,/checkpoints",
    "alerts.off": "LossPlateau,SlowStep@debug-*",
    "collector.gpu.extra": "links,engines",
    "collector.gpu.skip": "processes,clock",
    "collector.gpu.trouble": "hot,lost:2",
    "alerts.sinks.alertmanager.urls": "http://127.0.0.1:9093",
    "alerts.sinks.alertmanager.labels": "cluster=a,team=ml",
    **{f"alerts.sinks.{name}.also": "RunStarted,RunFinished" for name in ("alertmanager", "webhook", "apprise")},
    "alerts.rules": "[{alert: LossHigh, metric: 'key:loss', above: 5}]",
}
SECRET = ("alerts", "sinks")
"""Of these settings no value is ever said: an address may be a secret, and so may what stands in the wrong place."""
WEB_CONFIGURATION = frozenset({"tls_server_config", "http_server_config", "basic_auth_users", "rate_limit"})
"""The keys of another file, which may be taken for this one."""
_ROOTS = {"procfs": ("procfs", "stat"), "sysfs": ("sysfs", "class"), "rootfs": ("directory", "")}
"""What is looked for in each, to know it by."""
_KUBERNETES = re.compile(PREFIX + r"(\w+_)?(SERVICE_HOST|SERVICE_PORT\w*|PORT(_\d+_(TCP|UDP|SCTP)\w*)?)$")

log = logging.getLogger("trackside")


class ConfigError(Exception):
    """The configuration cannot be used; the message names where, which setting, and what to write instead."""


class Config(BaseSettings):
    """Everything that can be set."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_nested_delimiter="__", extra="forbid", frozen=True, case_sensitive=False
    )

    sample: SampleSection = SampleSection()
    path: PathSection = PathSection()
    run: RunSection = RunSection()
    web: WebSection = WebSection()
    push: PushSection = PushSection()
    storage: StorageSection = StorageSection()
    log: LogSection = LogSection()
    collector: CollectorsSection = CollectorsSection()
    limits: LimitsSection = LimitsSection()
    alerts: AlertsSection = AlertsSection()
    require_gpu: Annotated[bool, Field(description="Do not start without a GPU.")] = False

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003  replaced by one that leaves other variables alone
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003  there is none
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003  the same
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags over environment over file; `load` hands over the file's settings beside the flags, as ``file``."""
        flags = cast("InitSettingsSource", init_settings).init_kwargs
        file = InitSettingsSource(settings_cls, flags.pop("file", {}))
        return init_settings, _Environment(settings_cls), file


class _Environment(EnvSettingsSource):
    """The variables that are settings; the others are warned about elsewhere, and must not be errors."""

    def _load_env_vars(self) -> Mapping[str, str | None]:
        known = set(variables())
        return {name.lower(): value for name, value in os.environ.items() if name in known}


def settings(model: type[BaseModel] = Config, prefix: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The path of every setting, as Python names."""
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from settings(field.annotation, (*prefix, name))
        else:
            yield (*prefix, name)


def variables() -> dict[str, tuple[str, ...]]:
    """The environment variable of every setting."""
    return {PREFIX + "__".join(path).upper(): path for path in settings()}


def needs_restart(old: Config, new: Config) -> list[str]:
    """What differs that a running daemon cannot change."""
    sections = ("path", "web", "push", "collector", "limits")
    found = [name for name in sections if getattr(new, name) != getattr(old, name)]
    single = {"storage": ("path", "jsonl", "synchronous"), "alerts": ("enabled", "stall_after", "thresholds", "rules")}
    return found + [
        f"{section}.{name}"
        for section, names in single.items()
        for name in names
        if getattr(getattr(new, section), name) != getattr(getattr(old, section), name)
    ]


def describe(name: str) -> str:
    """The help text of a setting, with its default.

    Args:
        name: As on the command line, without the dashes in front.
    """
    model: Any = Config
    *sections, last = name.replace("-", "_").split(".")
    for section in sections:
        model = model.model_fields[section].annotation
    field = model.model_fields[last]
    default = field.default
    if default in ((), False, 0, "", SecretStr("")):
        return str(field.description)
    if name == "storage.retention.size":
        return f"{field.description} [default: {default // 1024**3}GiB]"
    if isinstance(default, tuple):
        return f"{field.description} [default: {','.join(default)}]"
    unit = "s" if any(getattr(one, "func", None) is seconds for one in field.metadata) else ""
    shown = f"{default:g}{unit}" if isinstance(default, float) else str(default).lower()
    return f"{field.description} [default: {shown}]"


def load(
    file: Path | None = None, flags: Mapping[str, Any] | None = None, groups: Collection[str] | None = None
) -> Config:
    """Read the configuration.

    Args:
        file: The YAML file, if there is one.
        flags: What the command line set, nested as the settings are.
        groups: The groups of readings of a GPU that there are; None when names of them are not to be checked.

    Raises:
        ConfigError: In one line, the first thing that is wrong.
    """
    values = _read(file) if file is not None else {}
    given = _Given(file, values, flags or {})
    try:
        config = Config(**{**given.flags, "file": values})
    except ValidationError as error:
        raise ConfigError(_explain(error, given)) from None
    _check_gpu(config.collector.gpu, given, groups)
    return config


def check_roots(path: PathSection) -> None:
    """Whether the host's directories that were set are what they should be; a machine without /sys is none's slip.

    Raises:
        ConfigError: In one line, the first that is wrong.
    """
    for name, (what, sign) in _ROOTS.items():
        root, default = Path(getattr(path, name)), PathSection.model_fields[name].default
        if str(root) == default or (root.is_dir() and (root / sign).exists()):
            continue
        lacks = f"it has no {sign}" if root.is_dir() else "it is a file" if root.exists() else "it is not there"
        raise ConfigError(f"path.{name}: {root} is no {what}: {lacks}; say where the host's {default} is mounted")


def _check_gpu(gpu: GpuSection, given: _Given, groups: Collection[str] | None) -> None:
    """That the groups and the simulated GPUs that are named are there."""
    for name, more in (("extra", ["all"]), ("skip", [])) if groups is not None else ():
        known = [*(groups or ()), *more]
        for one in getattr(gpu, name):
            if one not in known:
                origin = given.origin(("collector", "gpu", name))
                raise ConfigError(f"{origin}: no group {one!r}; there are {', '.join(known)}")
    try:
        assigned(gpu.trouble, gpu.simulate)
    except ValueError as error:
        raise ConfigError(f"{given.origin(('collector', 'gpu', 'trouble'))}: {error}") from None


class _Given(NamedTuple):
    """Where settings come from."""

    file: Path | None
    values: Mapping[str, Any]
    flags: Mapping[str, Any]

    def origin(self, path: tuple[str, ...]) -> str:
        """Where a setting was set, as the user wrote it there."""
        key = _dotted(path)
        if _holds(self.flags, path):
            return f"--{key}"
        if (variable := PREFIX + "__".join(path).upper()) in os.environ:
            return variable
        return f"{self.file}: {key}" if _holds(self.values, path) else key


def _read(file: Path) -> dict[str, Any]:
    try:
        values = parse(file.read_bytes())
    except OSError as error:
        raise ConfigError(
            f"{file}: {(error.strerror or str(error)).lower()}; --config.file takes a YAML file"
        ) from error
    except YamlError as error:
        raise ConfigError(f"{file}: {error}") from error
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigError(f"{file}: a mapping of settings is expected, not a {type(values).__name__}")
    return _python_names(values)


def _python_names(values: dict[Any, Any]) -> dict[str, Any]:
    """Settings by Python names, nested: ``web.listen-address: …`` is ``web: {listen-address: …}``."""
    nested: dict[str, Any] = {}
    for key, value in values.items():
        if value is None:  # a section whose lines are all commented out
            continue
        *sections, last = str(key).replace("-", "_").split(".")
        section = nested
        for name in sections:
            section = section.setdefault(name, {})
        if isinstance(value, dict):
            section.setdefault(last, {}).update(_python_names(value))
        else:
            section[last] = value
    return nested


def warn_of_unknown_variables() -> None:
    """Log the ``TRACKSIDE_*`` variables that are nobody's: not the client's, and not what Kubernetes puts there."""
    known = [*variables(), NVML_LOCK, WEB_CREDENTIALS]
    unknown = []
    for name in sorted(os.environ):
        if name.startswith(PREFIX) and name not in {*known, *CLIENT_VARIABLES} and not _KUBERNETES.match(name):
            near = difflib.get_close_matches(name, [*known, *CLIENT_VARIABLES], 1)
            unknown.append(f"{name} is not a setting and is ignored" + (f"; did you mean {near[0]}?" if near else ""))
    if unknown:
        log.warning("%s", ", and ".join(unknown))


def _explain(error: ValidationError, given: _Given) -> str:
    problem = error.errors()[0]
    path = tuple(str(part) for part in problem["loc"] if not isinstance(part, int))
    key, origin = _dotted(path), given.origin(path)
    got = "" if path[:2] == SECRET else f", got {problem['input']!r:.80}"
    if problem["type"] == "extra_forbidden":
        names = {_dotted(one[:length]): None for one in settings() for length in range(1, len(one) + 1)}
        near = difflib.get_close_matches(key, names, 1)
        if path[0] in WEB_CONFIGURATION:
            return f"{origin}: no such setting; it stands in a web configuration, the file of --web.config.file"
        return f"{origin}: no such setting" + (f"; did you mean {near[0]}?" if near else "")
    if problem["type"] == "value_error":
        return f"{origin}: {problem['msg'].removeprefix('Value error, ')}"
    if problem["type"] == "tuple_type":
        return f"{origin}: should be a list such as {_LISTS[key]}{got}"
    if problem["type"] == "model_type":
        hint = (
            f"; write {key}: {{enabled: {str(problem['input']).lower()}}}" if isinstance(problem["input"], bool) else ""
        )
        return f"{origin}: is a section of settings{got}{hint}"
    return f"{origin}: {problem['msg'][0].lower()}{problem['msg'][1:]}{got}"


def _dotted(path: tuple[str, ...]) -> str:
    return ".".join(path).replace("_", "-")


def _holds(values: Any, path: tuple[str, ...]) -> bool:
    for part in path:
        if not isinstance(values, dict) or part not in values:
            return False
        values = values[part]
    return True
