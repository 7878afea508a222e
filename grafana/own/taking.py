"""What trainings push: what is taken, what is refused, and what is kept."""

from __future__ import annotations

from grafana.board import Row
from grafana.panels import Query, lines, link, spread

RATE = "[$__rate_interval]"


def row() -> Row:
    """Taken and refused, lost, and the history."""
    return Row("What they take in", *_messages(), *_lost(), *_history())


def _counted(family: str, label: str, title: str, description: str) -> object:
    """A chart of what should be 0."""
    return lines(
        title,
        description,
        "none",
        Query(f"sum by ({label}) (increase({family}{{HERE}}{RATE}))", f"{{{{{label}}}}}"),
        least=0,
        width=8,
    )


def _messages() -> list[object]:
    return [
        lines(
            "Messages per second",
            "Messages from clients, by kind: batches have what was pushed, beats say that a rank lives.",
            "short",
            Query(f"sum by (kind) (rate(trackside_ingest_messages_total{{HERE}}{RATE}))", "{{kind}}"),
            least=0,
            width=8,
            links=[link("All runs", "trackside-fleet")],
        ),
        _counted(
            "trackside_ingest_rejected_total",
            "reason",
            "Messages refused",
            "By reason. version is a client that is too old or too new; key is one without the token of the machine.",
        ),
        _counted(
            "trackside_series_rejected_total",
            "reason",
            "Series left out",
            "Series beyond a limit, by which. Any is TracksideSeriesRejected: a training invents keys, or limits.* is too low.",
        ),
    ]


def _lost() -> list[object]:
    return [
        _counted(
            "trackside_pipeline_failures_total",
            "stage",
            "Batches that a stage failed on",
            "By stage. Any is TracksideSamplesLost: the daemon's log has the reason; history mostly is a full disk.",
        ),
        lines(
            "Batches sent twice or missing",
            "Duplicates are harmless: a client was not sure. Gaps are TracksidePushesMissing: the client could not keep them.",
            "none",
            *(
                Query(f"sum(increase(trackside_ingest_{name}_total{{HERE}}{RATE}))", name)
                for name in ("duplicates", "gaps")
            ),
            least=0,
            width=8,
        ),
        lines(
            "Alerts without room",
            "Alerts that were not kept, since 1,000 others fire. Any is TracksideAlertsDropped.",
            "none",
            Query(f"sum(increase(trackside_alerts_excess_total{{HERE}}{RATE}))", "dropped"),
            least=0,
            width=8,
        ),
    ]


def _history() -> list[object]:
    return [
        spread(
            "Size of the history",
            "Bytes of each daemon's history with its WAL. It stays near storage.retention.size once it is full.",
            "bytes",
            "trackside_history_size_bytes{HERE}",
            "{{instance}}",
            least=0,
            width=8,
        ),
        spread(
            "Samples kept per second",
            "Samples that each daemon commits to its history. 0 while runs push: see the stage history, above.",
            "short",
            f"rate(trackside_history_samples_total{{HERE}}{RATE})",
            "{{instance}}",
            least=0,
            width=8,
        ),
        spread(
            "History beyond its limit",
            "Bytes over storage.retention.size that pinned and live runs hold. Unpin some, or give it more room.",
            "bytes",
            "trackside_history_excess_bytes{HERE}",
            "{{instance}}",
            least=0,
            width=8,
        ),
    ]
