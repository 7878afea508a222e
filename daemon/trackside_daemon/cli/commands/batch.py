"""`trackside batch`: which samples of the data were in the batches of a step."""

from typing import Annotated

from trackside_daemon.cli.errors import errors_reported, fail
from trackside_daemon.cli.options import Form, Json, Run, StoragePath, Url, option
from trackside_daemon.cli.output import form_of, print_answer
from trackside_daemon.model.text import number, shown


def batch(
    run: Run,
    *,
    step: Annotated[int | None, option("N", "Step. [default: all for which the history has batches]")] = None,
    rank: Annotated[int | None, option("N", "Only this rank.")] = None,
    form: Form = "text",
    as_json: Json = False,
    storage_path: StoragePath = None,
    url: Url = "",
) -> None:
    """Show which samples of the data were in the batches of a step, and what some of them are called.

    Ranks keep the batches of their last steps, in 1 MiB; alerts about the loss and the gradients for ever. The exit
    status is 1 if none is known.
    """
    with errors_reported():
        from trackside_daemon.cli.sources.daemon_lookup import find_history
        from trackside_daemon.documents.alert import batches_document
        from trackside_daemon.questions import table as questions

        form = form_of(form, as_json=as_json)
        answer = find_history(storage_path, url).ask(questions.Batches(id=run, step=step, rank=rank))
        if not answer["batches"] and form != "json":
            which = "" if step is None else f" of step {number(step)}"
            why = "no alert has one, and its ranks have ended or forgotten it, or the training gives no loader to run.data"
            fail(f"run {shown(run)}: no batch{which} is known: {why}", 1)
        print_answer(answer, form, lambda: batches_document(shown(run), answer["batches"]))
