"""The command fleet: questions over the archived runs of all machines."""

from typing import Annotated, Any

from trackside_daemon.cli.errors import CommandError, errors_reported, warn
from trackside_daemon.cli.options import Json, argument, option
from trackside_daemon.cli.output import print_json, print_lines
from trackside_daemon.documents.text import table
from trackside_daemon.model.text import shown


def fleet(
    question: Annotated[str, argument("QUESTION", "A prepared question; by default they are listed.")] = "",
    *,
    source: Annotated[
        str, option("TARGET", "Directory or address with the archived runs. [default: bridges.parquet.url]", "--from")
    ] = "",
    sql: Annotated[
        str, option("QUERY", "A query over the tables runs, samples, alerts, and parts (a run's row of each machine).")
    ] = "",
    as_json: Json = False,
) -> None:
    """Ask over all archived runs: which lost most GPU hours, to which causes, on which hosts.

    A number in a question can be another one. It needs trackside[fleet].
    """
    with errors_reported():
        from trackside_daemon.bridges.parquet.fleet import QUESTIONS, ask, prepared
        from trackside_daemon.bridges.parquet.store import FileStore
        from trackside_daemon.http_client.errors import SendError, SettingError

        if not question and not sql:
            print_lines(QUESTIONS)
            return
        if question and sql:
            raise CommandError("a question and --sql: give one of them")
        try:
            found = ask(FileStore(source or _configured()), sql or prepared(question))
        except (SettingError, SendError, LookupError, ModuleNotFoundError) as error:
            raise CommandError(str(error.args[0])) from None
        except ValueError as error:
            raise CommandError(f"the query: {error}") from None
        for line in found.left_out:
            warn(f"left out: {line}")
        if as_json:
            print_json([dict(zip(found.columns, map(_plain, row), strict=True)) for row in found.rows])
        else:
            print_lines(table(found.columns, [tuple(map(_cell, row)) for row in found.rows]))


def _configured() -> str:
    from trackside_daemon.config.loading import load
    from trackside_daemon.service.config import Config

    url = load(Config).bridges.parquet.url
    if not url:
        raise CommandError("name the archived runs with --from TARGET, or set bridges.parquet.url")
    return url


def _plain(value: Any) -> Any:
    """Return a value that JSON can hold."""
    return value if value is None or isinstance(value, bool | int | float | str | list | dict) else str(value)


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:g}" if isinstance(value, float) else shown(value)
