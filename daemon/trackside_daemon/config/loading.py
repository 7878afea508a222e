"""Loading of a configuration: flags over ``TRACKSIDE_*`` variables over a YAML file.

Errors are one line. Each names the setting as the user wrote it, the value, and what to write instead.

A setting has one name everywhere: ``sample.interval`` is ``sample: {interval: …}`` in the file,
``TRACKSIDE_SAMPLE__INTERVAL`` in the environment and ``--sample.interval`` on the command line.
"""

from __future__ import annotations

import logging
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar, cast

from pydantic import BaseModel, SecretStr, ValidationError
from pydantic_core import ErrorDetails

from trackside.os_errors import os_error_text
from trackside_daemon.config.near import explain, near_name
from trackside_daemon.config.section import Section
from trackside_daemon.model.text import byte_size, seconds, size_bytes

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo


def setting_paths(model: type[BaseModel], prefix: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the path of every setting, as Python names."""
    for name, field in model.model_fields.items():
        section = _section(field)
        if section is None:
            yield (*prefix, name)
        else:
            yield from setting_paths(section, (*prefix, name))


def dotted(path: tuple[str, ...]) -> str:
    """Return the name of a setting, such as ``web.listen-address``."""
    return ".".join(path).replace("_", "-")


def path_of(name: str) -> tuple[str, ...]:
    """Return the path of the setting with this name; the inverse of `dotted`."""
    return tuple(name.replace("-", "_").split("."))


def sections(model: type[BaseModel], path: tuple[str, ...]) -> Iterator[type[BaseModel]]:
    """Yield the models along *path*, from the outermost; the path may end in a setting or in an unknown name."""
    current: type[BaseModel] | None = model
    # The last name has no model of its own: an empty name, which no model has, lets the loop yield the innermost one.
    for name in (*path, ""):
        if current is None:
            return
        yield current
        current = _section(current.model_fields.get(name))


def setting(model: type[BaseModel], path: tuple[str, ...]) -> FieldInfo:
    """Return the field of a setting."""
    return list(sections(model, path))[-1].model_fields[path[-1]]


def describe(model: type[BaseModel], name: str) -> str:
    """Return the description of a setting, with its default.

    Args:
        model: The whole configuration.
        name: Name as on the command line, without the leading dashes.
    """
    field = setting(model, path_of(name))
    if field.default in ((), False, 0, "", SecretStr("")):
        return str(field.description)
    return f"{field.description} [default: {_written(field)}]"


def _written(field: FieldInfo) -> str:
    """Return a setting's default as a user would write it."""
    default: Any = field.default
    validators = [getattr(item, "func", None) for item in field.metadata]
    if size_bytes in validators:
        return byte_size(default).replace(" ", "")
    if isinstance(default, tuple):
        return ",".join(default)
    if isinstance(default, float):
        return f"{default:g}{'s' if seconds in validators else ''}"
    return str(default).lower()


def _section(field: FieldInfo | None) -> type[BaseModel] | None:
    annotation: Any = field.annotation if field is not None else None
    # Not `issubclass`: in Python 3.10, list[str] passes as a type and makes it raise.
    return annotation if isinstance(annotation, type) and BaseModel in annotation.__mro__ else None


PREFIX = "TRACKSIDE_"
MOST_ERRORS = 5  # that are named at once
# Variables of the client; if they are set for a whole job, the daemon's environment has them too.
CLIENT_VARIABLES = frozenset(
    PREFIX + name
    for name in (
        "RUN_ID",
        "RUN_NAME",
        "TAGS",
        "CODE",
        "DISABLED",
        "ENDPOINT",
        "SPOOL",
        "FLUSH_TIMEOUT",
        "KEY_FILE",
        "LAUNCH",
    )
)

# Kubernetes sets these for a service that is called trackside.
_KUBERNETES = re.compile(PREFIX + r"(\w+_)?(SERVICE_HOST|SERVICE_PORT\w*|PORT(_\d+_(TCP|UDP|SCTP)\w*)?)$")

log = logging.getLogger("trackside")


class ConfigError(Exception):
    """The configuration cannot be used; the message names where, which setting, and what to write instead."""


class Settings(Section):
    """The base class of a whole configuration."""

    misplaced: ClassVar[Mapping[str, str]] = {}  # hints for keys of other files, which a user may mistake for this one


AnySettings = TypeVar("AnySettings", bound=Settings)


def load(model: type[AnySettings], file: Path | None = None, flags: Mapping[str, Any] | None = None) -> AnySettings:
    """Read the configuration.

    Args:
        model: The settings to read.
        file: The YAML file, if any.
        flags: Settings of the command line, nested like the model.

    Raises:
        ConfigError: The first error, in one line.
    """
    given = _Given(file, _read(file) if file is not None else {}, flags or {})
    values = _merge(_merge(given.values, _environment(model)), given.flags)
    # A section builds its validators when it first validates something, and for those that nobody has set that would take long.
    with suppress(ValidationError):  # that of the whole names what is wrong everywhere
        kinds = ((name, _section(model.model_fields.get(name))) for name in values)
        parts: dict[str, Any] = {name: kind.model_validate(values[name]) for name, kind in kinds if kind is not None}
        if len(parts) == len(values):
            return cast("AnySettings", model.model_construct(None, **parts))
    try:
        return model(**values)
    except ValidationError as error:
        found = [_explain(problem, model, given) for problem in error.errors()[:MOST_ERRORS]]
        raise ConfigError("; also: ".join(found)) from None


def set_in(file: Path, paths: Iterable[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Return those settings that a file sets.

    Raises:
        ConfigError: The file cannot be read.
    """
    values = _read(file)
    return [path for path in paths if _holds(values, path)]


class _Given(NamedTuple):
    """The sources of the settings."""

    file: Path | None
    values: Mapping[str, Any]
    flags: Mapping[str, Any]

    def origin(self, path: tuple[str, ...]) -> str:
        """Return where a setting was set, as the user wrote it there."""
        key = dotted(path)
        if _holds(self.flags, path):
            return f"--{key}"
        if (name := variable(path)) in os.environ:
            return name
        return f"{self.file}: {key}" if _holds(self.values, path) else key


def _environment(model: type[Settings]) -> dict[str, Any]:
    """Return the settings that are set in the environment; `environment.warn_of_unknown_variables` reports other variables."""
    values: dict[str, Any] = {}
    for name, (*outer, last) in variables(model).items():
        if name in os.environ:
            section = values
            for part in outer:
                section = section.setdefault(part, {})
            section[last] = os.environ[name]
    return values


def _merge(values: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings, those of *over* in place of the others."""
    merged = dict(values)
    for name, value in over.items():
        below = merged.get(name)
        merged[name] = _merge(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


def _read(file: Path) -> dict[str, Any]:
    from trackside_daemon.config.yaml import YamlError, parse  # imports PyYAML, which costs 1 MiB

    try:
        values = parse(file.read_bytes())
    except OSError as error:
        raise ConfigError(f"{file}: {os_error_text(error)}; give a YAML file with --config.file") from error
    except YamlError as error:
        raise ConfigError(f"{file}: {error}") from error
    # An empty file, or one with comments only.
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigError(f"{file}: a mapping of settings is expected, not a {type(values).__name__}")
    return _python_names(values)


def _python_names(values: dict[Any, Any]) -> dict[str, Any]:
    """Return settings by Python names, nested: ``web.listen-address: …`` becomes ``web: {listen_address: …}``."""
    nested: dict[str, Any] = {}
    for key, value in values.items():
        if value is None:  # a section whose lines are all commented out
            continue
        below = _python_names(value) if isinstance(value, dict) else value
        for name in reversed(str(key).replace("-", "_").split(".")):
            below = {name: below}
        nested = _merge(nested, below)
    return nested


def _explain(problem: ErrorDetails, model: type[Settings], given: _Given) -> str:
    """Return an error as one line."""
    # pydantic adds the position in a list, which is no part of a setting's name.
    path = tuple(str(part) for part in problem["loc"] if not isinstance(part, int))
    origin = given.origin(path)
    secret = any(issubclass(section, Section) and section.secret for section in sections(model, path))
    got = "" if secret else f", got {problem['input']!r:.80}"
    if problem["type"] == "extra_forbidden":
        return f"{origin}: no such setting{_hint(model, path)}"
    if problem["type"] == "tuple_type":
        (example,) = setting(model, path).examples or [""]
        return f"{origin}: should be a list such as {example}{got}"
    if problem["type"] == "model_type":
        value = problem["input"]
        hint = f"; write {dotted(path)}: {{enabled: {str(value).lower()}}}" if isinstance(value, bool) else ""
        return f"{origin}: is a section of settings{got}{hint}"
    return f"{origin}: {explain(problem, secret=secret)}"


def _hint(model: type[Settings], path: tuple[str, ...]) -> str:
    """Return what an unknown setting was probably meant to be."""
    if path[0] in model.misplaced:
        return f"; {model.misplaced[path[0]]}"
    known = {setting[:length]: None for setting in setting_paths(model) for length in range(1, len(setting) + 1)}
    beside = [one for one in known if one[:-1] == path[:-1]]
    # Whole names are alike by their section alone.
    is_near = not beside or near_name(path[-1], [one[-1] for one in beside])
    return near_name(dotted(path), map(dotted, beside or known)) if is_near else ""


def _holds(values: Any, path: tuple[str, ...]) -> bool:
    for part in path:
        if not isinstance(values, dict) or part not in values:
            return False
        values = values[part]
    return True


def variables(model: type[BaseModel]) -> dict[str, tuple[str, ...]]:
    """Return the path of every setting by its environment variable."""
    return {variable(path): path for path in setting_paths(model)}


def variable(path: tuple[str, ...]) -> str:
    """Return the environment variable of a setting."""
    return PREFIX + "__".join(path).upper()


def warn_of_unknown_variables(model: type[BaseModel], others: Iterable[str] = ()) -> None:
    """Log the ``TRACKSIDE_*`` variables that are neither a setting, nor the client's, nor set by Kubernetes.

    Args:
        model: The whole configuration.
        others: Variables that the daemon or our commands read without a setting.
    """
    valid = [*variables(model), *others, *CLIENT_VARIABLES]
    unknown = [
        f"{name} is not a setting and is ignored{near_name(name, valid)}"
        for name in sorted(os.environ)
        if name.startswith(PREFIX) and name not in valid and not _KUBERNETES.match(name)
    ]
    if unknown:
        log.warning("%s", ", and ".join(unknown))


def file_warnings(model: type[Settings], file: Path) -> Iterator[str]:
    """Yield one line if a valid configuration file contains a secret and others may read or change it."""
    status = file.stat()
    # As for keys: a group may read a file that root owns, such as that of the system's daemon.
    # A pipe cannot be read again.
    if not stat.S_ISREG(status.st_mode) or not status.st_mode & (0o037 if status.st_uid == 0 else 0o077):
        return
    secrets = (path for path in setting_paths(model) if setting(model, path).annotation is SecretStr)
    if found := set_in(file, secrets):
        yield f"{file}: others may read it, and {', '.join(map(dotted, found))} is secret: chmod 600 {file}"
