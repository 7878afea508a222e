"""Panels about ingestion: accepted and rejected pushes, lost data, and the history."""

from __future__ import annotations

from grafana.board import Row
from grafana.panels import Query, lines, link, spread

RATE = "[$__rate_interval]"


def row() -> Row:
    """Return the row with messages, losses and the history."""
    return Row("Ingestion", *_messages(), *_lost(), *_history())


def _failure_chart(family: str, label: str, title: str, description: str) -> object:
    """Return a chart of a counter that should not grow."""
    return lines(
        title,
        description,
        "none",
        Query(f"sum by ({label}) (increase({family}{{HERE}}{RATE}))", f"{{{{{label}}}}}"),
        minimum=0,
        width=8,
    )


def _messages() -> list[object]:
    return [
        lines(
            "Messages per second",
            "Messages from clients by kind. A batch contains pushed values; a beat shows that a rank is alive.",
            "short",
            Query(f"sum by (kind) (rate(trackside_ingest_messages_total{{HERE}}{RATE}))", "{{kind}}"),
            minimum=0,
            width=8,
            links=[link("All runs", "trackside-fleet")],
        ),
        _failure_chart(
            "trackside_ingest_rejected_total",
            "reason",
            "Rejected messages",
            "Rejected messages by reason. version means a client that is too old or too new; key means one without the machine's token.",
        ),
        _failure_chart(
            "trackside_series_rejected_total",
            "reason",
            "Rejected series",
            "Series above a limit, by limit. Any of them fires TracksideSeriesRejected: a training script creates too many keys, or "
            "limits.* is too low.",
        ),
    ]


def _lost() -> list[object]:
    return [
        _failure_chart(
            "trackside_pipeline_failures_total",
            "stage",
            "Failed batches",
            "Batches on which a stage failed, by stage. Any of them fires TracksideSamplesLost. The daemon's log has the reason; for "
            "history it is usually a full disk.",
        ),
        lines(
            "Duplicate and missing batches",
            "Duplicates are harmless: a client resent a batch to be safe. Gaps fire TracksidePushesMissing: the client could not "
            "keep the batches.",
            "none",
            *(
                Query(f"sum(increase(trackside_ingest_{name}_total{{HERE}}{RATE}))", name)
                for name in ("duplicates", "gaps")
            ),
            minimum=0,
            width=8,
        ),
        lines(
            "Dropped alerts",
            "Alerts that were dropped because 1,000 others fire. Any of them fires TracksideAlertsDropped.",
            "none",
            Query(f"sum(increase(trackside_alerts_excess_total{{HERE}}{RATE}))", "dropped"),
            minimum=0,
            width=8,
        ),
    ]


def _history() -> list[object]:
    return [
        spread(
            "History size",
            "Bytes of each daemon's history including its WAL. It stays near storage.retention.size once the history is full.",
            "bytes",
            "trackside_history_size_bytes{HERE}",
            "{{instance}}",
            minimum=0,
            width=8,
        ),
        spread(
            "Samples written per second",
            "Samples that each daemon commits to its history. If it is 0 while runs push, see the stage history above.",
            "short",
            f"rate(trackside_history_samples_total{{HERE}}{RATE})",
            "{{instance}}",
            minimum=0,
            width=8,
        ),
        spread(
            "History above its limit",
            "Bytes above storage.retention.size that pinned and live runs use. Unpin runs or raise the limit.",
            "bytes",
            "trackside_history_excess_bytes{HERE}",
            "{{instance}}",
            minimum=0,
            width=8,
        ),
        lines(
            "Captures",
            "Captures that ended, by trigger and state. `trackside captures` has the reasons of those that failed.",
            "none",
            Query(
                f"sum by (trigger, state) (increase(trackside_captures_total{{HERE}}{RATE}))", "{{trigger}} {{state}}"
            ),
            minimum=0,
            width=24,
        ),
    ]
