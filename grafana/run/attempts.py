"""Attempts of the run, and how its ranks started and ended."""

from __future__ import annotations

from grafana.board import Row, annotation
from grafana.panels import Column, Query, rows
from grafana.run.overview import ALERTS, ON_ITS_MACHINES
from grafana.states import STATE_TEXTS, state

COLUMNS = ("attempt", "run_id", "host", "world_size", "framework", "git_commit", "job_id")
START, END, PUSHED = (f"trackside_training_{name}_timestamp_seconds" for name in ("start", "end", "last_step"))


def row() -> Row:
    """Return the row with the tables of attempts and ranks."""
    return Row("Attempts and ends", _attempts(), _ranks(), collapsed=True)


def _attempts() -> object:
    return rows(
        "Attempts",
        "Every attempt within the displayed time, with its machines. Many in an hour fire TracksideRunRestarting; "
        "`trackside show RUN` shows how each ended.",
        Query(f"max by ({', '.join(COLUMNS)}) (last_over_time(trackside_training_run_info{{RUN}}[$__range]))"),
        columns=[Column(name, name.replace("_", " ")) for name in COLUMNS],
    )


def _ranks() -> object:
    times = {START: "started", PUSHED: "last push", END: "ended"}
    return rows(
        "Ranks now",
        "State and times of each rank, until 15 minutes after its end. The rank that ended first is the cause.",
        Query(_with_ended(state("trackside_training_rank_state{RANK}", "rank"))),
        Query(_with_ended("max by (rank) (trackside_training_step{RANK})")),
        *(Query(_with_ended(f"max by (rank) ({family}{{RANK}}) * 1000")) for family in (START, PUSHED)),
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


def _with_ended(by_rank: str) -> str:
    """Extend a query by the last values of ended ranks, whose series disappear after run.linger, while their end is known."""
    return f"{by_rank} or last_over_time(({by_rank})[15m:15s]) and on (rank) {END}{{RANK}}"


def run_annotations() -> list[object]:
    """Return the annotations of alerts, attempts and ends."""
    alerts = f'({ALERTS[:-1]}, severity!="info"}} {ON_ITS_MACHINES}) == 1'
    began = f"max by (run, attempt) (trackside_training_run_info{{RUN}}) * on (run) group_left () max by (run) ({START}{{RUN}})"
    return [
        annotation(
            "Alerts",
            f"max by (alert, severity, run, rank, key, gpu) ({alerts})",
            "{{alert}}",
            "rank {{rank}} {{key}} {{gpu}}",
            "red",
            tags="severity",
        ),
        annotation("Attempts", f"1000 * {began}", "Attempt {{attempt}}", "{{run}} began", "blue", timestamps=True),
        annotation("Ends", f"1000 * max by (run) ({END}{{RUN}})", "End", "{{run}} ended", "purple", timestamps=True),
    ]
