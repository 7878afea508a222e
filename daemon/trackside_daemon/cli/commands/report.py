"""`trackside report`: one file about runs, to keep or to send."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from trackside_daemon.cli.errors import CommandError, errors_reported, warn
from trackside_daemon.cli.options import Runs, StoragePath, Url, option
from trackside_daemon.cli.output import FORMS, SHORT, form_of, written

MAX_RUNS = 20  # runs in one report: more lines in a chart cannot be distinguished
STANDARD_OUTPUT = Path("-")


def report(
    run: Runs,
    *,
    output: Annotated[
        Path | None,
        option(
            "FILE",
            "File, or - for standard output; its suffix selects the format. [default: RUN.html]",
            "--output",
            "-o",
        ),
    ] = None,
    form: Annotated[
        str, option("|".join(FORMS), "Format of the file. [default: that of the suffix, or html]", "--format")
    ] = "",
    plots: Annotated[
        Path | None, option("DIR", "Also write each chart as SVG and PNG, light and dark, to this directory.")
    ] = None,
    storage_path: StoragePath = None,
    url: Url = "",
) -> None:
    """Write a report about runs: curves, lost time with its causes, alerts, configuration.

    The HTML file needs no network. Several runs share the charts.
    """
    with errors_reported():
        from trackside_daemon.cli.sources.daemon_lookup import find_history
        from trackside_daemon.documents.plots import file_name
        from trackside_daemon.documents.report import document
        from trackside_daemon.questions.diagnosis import SIZE, Report

        form = form_of(form) if form else _form_of_file(output)
        runs = list(dict.fromkeys(run))
        if len(runs) > MAX_RUNS:
            raise CommandError(f"{len(runs)} runs are too many for one report; name at most {MAX_RUNS}")
        source = find_history(storage_path, url)
        reports = [source.ask(Report(id=text, size=SIZE // len(runs))) for text in runs]
        text = json.dumps({"reports": reports}) + "\n" if form == "json" else written(document(reports), form)
        suffix = {name: short for short, name in SHORT.items()} | {"html": "html"}
        output = output or Path(f"{file_name(reports[0]['run']['name'])}.{suffix.get(form, form)}")
        if output == STANDARD_OUTPUT:
            typer.echo(text, nl=False)
        else:
            output.write_text(text, encoding="utf-8")
            typer.echo(f"written: {output}")
        if plots is not None:
            count = _write_plots(reports, plots)
            typer.echo(f"written: {count} charts to {plots}", err=output == STANDARD_OUTPUT)


def _form_of_file(output: Path | None) -> str:
    """Return the form that a file's suffix names; HTML for another one."""
    suffix = output.suffix.lower().removeprefix(".") if output else ""
    form = SHORT.get(suffix, suffix)
    return form if form in FORMS else "html"


def _write_plots(reports: list[dict[str, Any]], directory: Path) -> int:
    """Write each chart, and return their number."""
    from trackside_daemon.documents.plots import file_name, files
    from trackside_daemon.documents.report import charts

    draws_png = find_spec("matplotlib") is not None
    if not draws_png:
        warn("without matplotlib there are only SVG files; for PNG: pip install 'trackside[plots]'")
    directory.mkdir(parents=True, exist_ok=True)
    drawn = charts(reports)
    axes = [report["axes"] for report in reports]
    for place, chart in enumerate(drawn, 1):
        named = f"{place:0{len(str(len(drawn)))}}-{file_name(chart['key'])}"
        for name, content in files(named, chart, axes, pngs=draws_png):
            (directory / name).write_bytes(content)
    return len(drawn)
