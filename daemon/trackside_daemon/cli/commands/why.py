"""`trackside why`: where the time of a run went, and what to do about it."""

from typing import Annotated

from trackside_daemon.cli.errors import errors_reported, warn
from trackside_daemon.cli.options import Form, Json, RunOrNewest, StoragePath, Url, option
from trackside_daemon.cli.output import form_of, print_answer


def why(
    run: RunOrNewest = "",
    *,
    baseline: Annotated[
        list[str] | None,
        option(
            "RUN",
            "Run or tag to compare with; may be repeated. [default: the pinned run of this name, else the one before]",
        ),
    ] = None,
    key: Annotated[list[str] | None, option("KEY", "Key whose trend and comparison to add; may be repeated.")] = None,
    form: Form = "text",
    as_json: Json = False,
    storage_path: StoragePath = None,
    url: Url = "",
) -> None:
    """Explain why a run is slow: where its time went, the causes that cost most, and what to try.

    Lost times are upper limits: other work may hide a part of them. The text has the most important parts, the other
    formats all.
    """
    with errors_reported():
        from trackside_daemon.cli.sources.daemon_lookup import find_history
        from trackside_daemon.cli.sources.source import newest_unless
        from trackside_daemon.documents.diagnosis import document, summary
        from trackside_daemon.questions import table as questions

        form = form_of(form, as_json=as_json)
        source = find_history(storage_path, url)
        run = newest_unless(source, run)
        diagnosis = source.ask(questions.Diagnosis(id=run, baseline=tuple(baseline or ()), key=tuple(key or ())))
        if not source.live and source.ask(questions.Run(id=run, limit=1))["ended"] is None:
            warn("no daemon answers: the run was alive when the last one ended, and its time counts until now")
        print_answer(diagnosis, form, lambda: (summary if form == "text" else document)(diagnosis))
