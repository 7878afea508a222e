"""Options that are made from the daemon's settings. Apart from `options`, since only two commands pay for pydantic."""

import inspect
from collections.abc import Callable, Collection, Mapping
from functools import wraps
from typing import Annotated, Any

import typer

from trackside_daemon.cli.options import set_parameters
from trackside_daemon.config.loading import describe, dotted, path_of, setting, setting_paths
from trackside_daemon.service.config import Config

Flags = dict[tuple[str, ...], Any]
"""The settings that the user gave on the command line, by path; the values are texts, lists of texts or booleans."""


def from_settings(
    *names: str, groups: Mapping[str, str] | None = None, usual: Collection[str] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command an option for each of the settings or sections *names*.

    The command receives those that the user gave as ``flags``.

    Args:
        names: The settings or sections.
        groups: Headings in the help, by section; with them, ``--help`` lists the *usual* options, and ``--help-all`` all.
        usual: The settings whose options ``--help`` lists.
    """
    paths = [path for name in names for path in setting_paths(Config) if path[: len(path_of(name))] == path_of(name)]

    def parameter(path: tuple[str, ...]) -> inspect.Parameter:
        place = {"rich_help_panel": groups[path[0]], "hidden": dotted(path) not in usual} if groups else {}
        return inspect.Parameter(
            "__".join(path), inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_option(path, place)
        )

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def with_flags(**values: Any) -> None:
            flags = {path: values.pop("__".join(path)) for path in paths}
            command(**values, flags={path: value for path, value in flags.items() if value not in (None, [], ())})

        own = inspect.signature(command, eval_str=True).parameters
        set_parameters(with_flags, [*(own[name] for name in own if name != "flags"), *map(parameter, paths)])
        return with_flags

    return decorate


def nested(flags: Flags) -> dict[str, Any]:
    """Return flags nested as the settings are: ``{("sample", "interval"): "2s"}`` as ``{"sample": {"interval": "2s"}}``."""
    values: dict[str, Any] = {}
    for (*sections, last), value in flags.items():
        section = values
        for name in sections:
            section = section.setdefault(name, {})
        section[last] = value
    return values


def arguments(flags: Flags) -> list[str]:
    """Return flags as on the command line: ``--sample.interval=2s``, ``--capture.auto``; a list has one argument per item."""
    several = {path: value if isinstance(value, list) else [value] for path, value in flags.items()}
    return [_argument(dotted(path), value) for path, values in several.items() for value in values]


def _argument(name: str, value: str | bool) -> str:
    return f"--{name}={value}" if isinstance(value, str) else f"--{name}" if value else f"--no-{name}"


def _option(path: tuple[str, ...], place: Mapping[str, Any]) -> Any:
    """Return the annotation of a setting's option, at a *place* in the help.

    Texts are checked when the configuration is loaded, so that an error reads the same wherever a setting was set.
    """
    field = setting(Config, path)
    name = dotted(path)
    if path[-1] == "enabled":
        name = dotted(path[:-1])
        default = "on" if field.default else "off"
        return _flag(f"--{name}/--no-{name}", f"Turn the {path[-2]} collector on or off. [default: {default}]", place)
    text = describe(Config, name)
    if field.annotation is bool:
        return _flag(f"--{name}/--no-{name}" if field.default else f"--{name}", text, place)
    repeatable = isinstance(field.json_schema_extra, dict) and field.json_schema_extra.get("repeatable")
    kind: Any = list[str] | None if repeatable else str | None
    metavar = name.rpartition(".")[2].upper()
    return Annotated[kind, typer.Option(f"--{name}", help=text, metavar=metavar, show_default=False, **place)]


def _flag(declaration: str, text: str, place: Mapping[str, Any]) -> Any:
    return Annotated[bool | None, typer.Option(declaration, help=text, show_default=False, **place)]
