"""Attempts of the run, and how its ranks began and ended."""

from __future__ import annotations

from grafana.board import Row, marks
from grafana.panels import Column, Query, rows
from grafana.run.overview import ALERTS, ON_ITS_MACHINES
from grafana.states import STATE_TEXTS, state

KNOWN = ("attempt", "run_id", "host", "world_size", "framework", "git_commit", "job_id")
START, END, PUSHED = (f"trackside_training_{name}_timestamp_seconds" for name in ("start", "end", "last_step"))


def row() -> Row:
    """Two tables."""
    return Row("Attempts and ends", _attempts(), _ranks(), collapsed=True)


def _attempts() -> object:
    return rows(
        "Attempts",
        "Every attempt that was seen in the time that is shown, and its machines. Many in an hour are TracksideRunRestarting: "
        "`trackside show RUN` has the end of each.",
        Query(f"max by ({', '.join(KNOWN)}) (last_over_time(trackside_training_run_info{{RUN}}[$__range]))"),
        columns=[Column(name, name.replace("_", " ")) for name in KNOWN],
    )


def _ranks() -> object:
    times = {START: "started", PUSHED: "last push", END: "ended"}
    return rows(
        "Ranks now",
        "State and times of each rank, until 15 minutes after its end. The one that ended first is the cause.",
        Query(_kept(state("trackside_training_rank_state{RANK}", "rank"))),
        Query(_kept("max by (rank) (trackside_training_step{RANK})")),
        *(Query(_kept(f"max by (rank) ({family}{{RANK}}) * 1000")) for family in (START, PUSHED)),
        Query(f"max by (rank) ({END}{{RANK}}) * 1000"),
        columns=[
            Column("rank", "rank"),
            Column("Value #A", "state", mappings=STATE_TEXTS),
            Column("Value #B", "step"),
            *(
                Column(f"Value #{letter}", text, "dateTimeAsLocal")
                for letter, text in zip("CDE", times.values(), strict=True)
            ),
        ],
    )


def _kept(by_rank: str) -> str:
    """A query with what it last said of the ranks whose end is told still: all else of them goes after run.linger."""
    return f"{by_rank} or last_over_time(({by_rank})[15m:15s]) and on (rank) {END}{{RANK}}"


def marked() -> list[object]:
    """Alerts, beginnings and ends, marked on all charts."""
    alerts = f'({ALERTS[:-1]}, severity!="info"}} {ON_ITS_MACHINES}) == 1'
    began = f"max by (run, attempt) (trackside_training_run_info{{RUN}}) * on (run) group_left () max by (run) ({START}{{RUN}})"
    return [
        marks(
            "Alerts",
            f"max by (alert, severity, run, rank, key, gpu) ({alerts})",
            "{{alert}}",
            "rank {{rank}} {{key}} {{gpu}}",
            "red",
            tags="severity",
        ),
        marks("Attempts", f"1000 * {began}", "Attempt {{attempt}}", "{{run}} began", "blue", moments=True),
        marks("Ends", f"1000 * max by (run) ({END}{{RUN}})", "End", "{{run}} ended", "purple", moments=True),
    ]
