"""The commands capture and captures: record a run now, and list what was recorded."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from trackside.limits import PROFILE_SECONDS, PROFILE_STEPS
from trackside.os_errors import os_error_text
from trackside_daemon.cli.errors import CommandError, errors_reported, fail, warn
from trackside_daemon.cli.options import Json, Run, StoragePath, Url, argument, flag, option
from trackside_daemon.cli.output import print_json, print_lines
from trackside_daemon.cli.sources.source import Source
from trackside_daemon.documents.text import table
from trackside_daemon.model.capture import FINAL, CaptureBody, KindName, OptionError
from trackside_daemon.model.text import byte_size, moment, shown

STALE = "no daemon answers: the state of a capture that has not ended is the last one stored"


def capture(
    run: Run,
    *,
    steps: Annotated[
        int | None, option("N", f"Number of optimizer steps, {PROFILE_STEPS} at most. [default: 10]")
    ] = None,
    seconds: Annotated[
        float | None, option("SECONDS", f"Duration in seconds, {PROFILE_SECONDS:g} at most, instead of steps.")
    ] = None,
    ranks: Annotated[str, option("RANKS", "Ranks, such as 0,3, or all.")] = "all",
    stacks: Annotated[
        bool, flag("--stacks", "Record Python functions; without PyTorch, the stacks of all threads.")
    ] = False,
    memory: Annotated[bool, flag("--memory", "Record a snapshot of memory instead of a profile.")] = False,
    layers: Annotated[
        bool, flag("--layers", "Record the layers of an observed model instead, for 100 steps or --steps.")
    ] = False,
    modules: Annotated[
        bool, flag("--modules", "Record time and activations of each module of a watched model instead.")
    ] = False,
    as_json: Json = False,
    url: Url = "",
) -> None:
    """Record a run for some steps, and print where their time goes.

    The training needs no code for it, only `trackside run`, and is slower meanwhile. Ctrl-C ends the wait alone.
    """
    with errors_reported():
        from trackside_daemon.cli.sources.daemon_lookup import find_daemon

        chosen: dict[KindName, bool] = {"layers": layers, "memory": memory, "modules": modules}
        kind, *others = [name for name, wanted in chosen.items() if wanted] or ["profile"]
        if others:
            raise CommandError(f"{', '.join(f'--{name}' for name in (kind, *others))}: give one of them")
        asked = CaptureBody(kind, "person", _ranks(ranks), steps, seconds, stacks=stacks)
        try:
            asked.options()
        except OptionError as error:
            raise CommandError(error.text("--")) from None
        answer = find_daemon(url).record(run, msgspec.to_builtins(asked))
        if as_json:
            print_json(answer)
        elif answer["state"] == "summarised":
            print_lines(map(shown, answer["text"]))
            if answer["files"]:
                print_lines([f"its files: trackside captures {run} --output DIRECTORY"])
        if answer["state"] == "failed":
            fail(f"run {run}: {answer['reason']}", 1)


def captures(
    run: Annotated[str, argument("RUN", "An id, the beginning of one, or a name.")] = "",
    *,
    output: Annotated[Path | None, option("DIR", "Also save their files here, in a directory each.")] = None,
    as_json: Json = False,
    storage_path: StoragePath = None,
    url: Url = "",
) -> None:
    """List the captures of a run, or of all runs, oldest first.

    Perfetto (ui.perfetto.dev), the TensorBoard plug-in and HTA open the traces of profiles.
    """
    with errors_reported():
        from trackside_daemon.cli.sources.daemon_lookup import find_history
        from trackside_daemon.questions import table as questions

        source = find_history(storage_path, url)
        found = source.ask(questions.RunCaptures(id=run) if run else questions.Captures())["captures"]
        if not source.live and any(one["state"] not in FINAL for one in found):
            warn(STALE)
        if output is not None:
            _save(source, found, output)
        if as_json:
            print_json(found)
        elif not found:
            print_lines(["no captures; `trackside capture RUN` records one"])
        else:
            header = ("ID", "ASKED", "RUN", "KIND", "BY", "STATE", "SIZE", "")
            print_lines(table(header, list(_rows(found)), right="      >", flexible="  ~    ~"))


def _save(source: Source, found: Sequence[Mapping[str, Any]], output: Path) -> None:
    from trackside_daemon.history.files.jsonl import folder  # as of an id, so of a name: it leads nowhere else

    try:
        for one in found:
            directory = output / folder(one["id"])
            for file in one["files"]:
                directory.mkdir(parents=True, exist_ok=True)
                path = directory / folder(file["name"])
                with path.open("wb") as target:
                    for chunk in source.capture_file(one["id"], file["name"]):
                        target.write(chunk)
        typer.echo(f"written: {sum(len(one['files']) for one in found)} files to {output}", err=True)
    except OSError as error:
        raise CommandError(f"--output {error.filename or output}: {os_error_text(error)}") from None


def _rows(found: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, ...]]:
    for one in found:
        size = sum(file["bytes"] for file in one["files"])
        cells = (one["id"], moment(one["asked"]), one["run"], one["kind"], one["trigger"], one["state"])
        yield (*map(shown, cells), byte_size(size), shown(one["reason"]))


def _ranks(text: str) -> list[int]:
    if text == "all":
        return []
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise CommandError(f"--ranks {text}: write numbers with commas, such as 0,3, or all") from None
