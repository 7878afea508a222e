"""`trackside layers`: the layers of an observed model that stand out most."""

from typing import Annotated

from trackside_daemon.cli.errors import errors_reported, fail
from trackside_daemon.cli.options import Json, Run, StoragePath, Url, option
from trackside_daemon.cli.output import print_json, print_lines
from trackside_daemon.documents.text import table
from trackside_daemon.model.text import shown


def layers(
    run: Run,
    *,
    most: Annotated[int, option("N", "Number of layers.", "-n", "--number", min=1)] = 20,
    as_json: Json = False,
    storage_path: StoragePath = None,
    url: Url = "",
) -> None:
    """List the layers of a model that stand out most, as of their last measurement by run.observe(model).

    First those with a firing alert, then those without a gradient, then by the distance from the median of all
    layers: of the update ratio, of the largest output above it, of the entropy below it. zeros is the share of zeros
    among the gradients, entropy the lowest of the heads.
    """
    with errors_reported():
        from trackside_daemon.cli.sources.daemon_lookup import find_history
        from trackside_daemon.history.read.layers import HEADER, alerts_by_layer, ranked, row
        from trackside_daemon.questions import table as questions

        source = find_history(storage_path, url)
        found = source.ask(questions.LayerValues(id=run))
        if as_json:
            print_json(found)
            return
        if not found["kinds"]:
            fail(f"run {shown(run)} has no measured layers; run.observe(model) in the training measures them", 1)
        firing = alerts_by_layer(
            one for one in source.ask(questions.Alerts(run=found["run"]))["alerts"] if one["ended"] is None
        )
        every = ranked(found["kinds"], firing)
        rows = [row(one) for one in every[:most]]
        steps = ", ".join(f"{kind} at step {one['step']:,}" for kind, one in found["kinds"].items())
        print_lines([*table(HEADER, rows, right=" >>>>>> ", flexible="~      ~"), f"{len(every)} layers: {steps}"])
