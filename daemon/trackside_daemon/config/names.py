"""Names and descriptions of the settings in a model.

A setting has one name everywhere: ``sample.interval`` is ``sample: {interval: …}`` in the file,
``TRACKSIDE_SAMPLE__INTERVAL`` in the environment and ``--sample.interval`` on the command line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, SecretStr

from trackside_daemon.model.text import byte_size, seconds, size_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

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
