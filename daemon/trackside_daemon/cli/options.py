"""Options: how commands declare them, those that several share, and their groups in the help."""

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import MISSING, fields
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import typer
from typer.core import TyperCommand


def option(metavar: str, text: str, *names: str, **more: Any) -> Any:
    """Return an option with a value; its help shows the default, unless the text states one."""
    return typer.Option(*names, metavar=metavar, help=text, **{"show_default": "[default:" not in text, **more})


def flag(name: str, text: str, *names: str, **more: Any) -> Any:
    """Return an option without a value."""
    return typer.Option(name, *names, help=text, **more)


def argument(metavar: str, text: str, **more: Any) -> Any:
    """Return an argument; its help shows no default."""
    return typer.Argument(metavar=metavar, help=text, show_default=False, **more)


ConfigFile = Annotated[
    Path | None, option("FILE", "YAML file of the daemon's settings: sample: {interval: 2s}", "--config.file")
]


def _print_all_options(context: typer.Context, wanted: bool) -> None:
    if wanted:
        for option in context.command.params:
            option.hidden = False  # type: ignore[attr-defined]  # arguments are none of those
        typer.echo(context.get_help())
        raise typer.Exit


HelpAll = Annotated[bool, flag("--help-all", "Show all options and exit.", callback=_print_all_options, is_eager=True)]
StoragePath = Annotated[
    Path | None,
    option("DIR", "Directory of the history. [default: that of the running daemon, else your own]", "--storage.path"),
]
Url = Annotated[str, option("URL", "Address of a daemon elsewhere, with #token=… if it requires one.", "--url")]
Form = Annotated[str, option("text|markdown|html|csv|json", "Format of the output.", "--format")]
Json = Annotated[bool, flag("--json", "Print JSON.")]
_RUN = "An id, the beginning of one, or a name: its newest run."
Run = Annotated[str, argument("RUN", _RUN)]
RunOrNewest = Annotated[str, argument("RUN", f"{_RUN} [default: the newest run]")]
Query = Annotated[
    str,
    option(
        "QUERY",
        "All runs that this selects, such as 'failed lr>=1e-3 -tag:keep older:30d': docs/queries.md.",
        "--query",
    ),
]
RunOrQuery = Annotated[str, argument("[RUN]", _RUN)]
RunsOrQuery = Annotated[list[str] | None, argument("[RUN]...", _RUN)]
Runs = Annotated[list[str], argument("RUN", _RUN)]


T = TypeVar("T")


def written_argument(argument: Any) -> str:
    """Return an argument as in a usage: ``RUN``, ``[RUN]``, ``RUN...``."""
    name = argument.metavar or argument.name.upper()
    name = name.upper() if name.islower() else name
    if not argument.required and not name.startswith("["):
        name = f"[{name}]"
    return name if argument.nargs == 1 or name.endswith("...") else f"{name}..."


class GroupedCommand(TyperCommand):
    """A command whose help lists its options below the ``rich_help_panel`` of each; those without one are ``Options``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; the error of a setting that has no option says where it is set."""
        try:
            return super().parse_args(ctx, args)
        except Exception as error:  # NoSuchOption, whose module differs between the versions of typer
            name = getattr(error, "option_name", "").lstrip("-")
            has_file = any("--config.file" in param.opts for param in self.get_params(ctx))
            if "." in name and has_file and not getattr(error, "possibilities", name):  # another error has none
                variable = f"TRACKSIDE_{name.replace('.', '__').replace('-', '_').upper()}"
                error.message += f"; set it in the file of --config.file, or by ${variable}"  # type: ignore[attr-defined]
            raise

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return what follows the name in the usage; typer would put brackets or braces around each argument."""
        arguments = [param for param in self.get_params(ctx) if param.param_type_name == "argument"]
        return [self.options_metavar or "", *map(written_argument, arguments)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write a section for each group, in the order in which they appear."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            usual = "Arguments" if param.param_type_name == "argument" else "Options"
            if record is not None:
                # Typer appends the type to an argument that has a name already: RUN <list[str]>.
                name = re.sub(r" <.*>$", "", record[0]) if usual == "Arguments" else record[0]
                sections.setdefault(getattr(param, "rich_help_panel", None) or usual, []).append((name, record[1]))
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


def from_fields(options: type[T]) -> Callable[[Callable[[T], None]], Callable[..., None]]:
    """Give a command an option, or an argument, for each field of a dataclass, and call it with the dataclass."""

    def decorate(command: Callable[[T], None]) -> Callable[..., None]:
        @wraps(command)
        def with_fields(**values: Any) -> None:
            command(options(**values))

        kinds = get_type_hints(options, include_extras=True)
        defaults = {
            field.name: inspect.Parameter.empty if field.default is MISSING else field.default
            for field in fields(options)  # type: ignore[arg-type]  # it is a dataclass
        }
        set_parameters(with_fields, [_parameter(name, kinds[name], default) for name, default in defaults.items()])
        return with_fields

    return decorate


def set_parameters(command: Callable[..., None], parameters: Sequence[inspect.Parameter]) -> None:
    """Make typer see these parameters of a command."""
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}


def _parameter(name: str, kind: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
