"""The families of the daemon itself: its collectors, its ingest, its history, its captures and its bridges."""

from trackside_daemon.model.metric import define

BUILD_INFO = define(
    "trackside_build_info", "This daemon's version, and Python's; always 1.", "version", "python_version"
)
RELOADED = define("trackside_config_last_reload_successful", "Whether the last reload of the configuration succeeded.")
RELOADED_AT = define(
    "trackside_config_last_reload_success_timestamp_seconds",
    "Unix time of the last successful load of the configuration.",
)
CONFIG_HASH = define(
    "trackside_config_hash",
    "Hash of all settings of the last successful load; equal on all daemons with equal settings.",
)
CERTIFICATE_END = define(
    "trackside_web_certificate_not_after_timestamp_seconds",
    "Unix time at which the certificate of the web server expires; absent without TLS.",
)

COLLECTOR_SUCCESS = define(
    "trackside_collector_success", "1 when the collector's last run returned its samples, else 0.", "collector"
)
COLLECTOR_DURATION = define(
    "trackside_collector_duration_seconds", "Duration of the collector's last run.", "collector"
)
COLLECTOR_LAST_SUCCESS = define(
    "trackside_collector_last_success_timestamp_seconds",
    "Unix time of the collector's last success; absent while it has nothing to collect, for example while GPUs are paused.",
    "collector",
)
COLLECTOR_SKIPPED = define(
    "trackside_collector_skipped_total",
    "Ticks without a run of the collector; because its source was still busy with the last request, or the sampler "
    "with other collectors.",
    "collector",
)

INGEST_MESSAGES = define("trackside_ingest_messages_total", "Messages accepted from clients.", "kind")
INGEST_REJECTED = define(
    "trackside_ingest_rejected_total",
    "Messages, connections and runs refused, by reason; connections for lack of a key or as one of too many, runs of "
    "another user.",
    "reason",
)
INGEST_DUPLICATES = define("trackside_ingest_duplicates_total", "Batches that had been accepted before.")
INGEST_GAPS = define(
    "trackside_ingest_gaps_total", "Batches that are missing for good; because the client had to drop them."
)
INGEST_RESTARTS = define(
    "trackside_ingest_worker_restarts_total",
    "Replacements of the process that talks to the clients; what they had not acknowledged is resent.",
)

PIPELINE_FAILURES = define(
    "trackside_pipeline_failures_total", "Batches on which a stage of the pipeline failed.", "stage"
)

HISTORY_SIZE = define("trackside_history_size_bytes", "Size of the history's file and its WAL.")
HISTORY_SAMPLES = define("trackside_history_samples_total", "Samples that were committed to the history.")
HISTORY_EXCESS = define(
    "trackside_history_excess_bytes", "Bytes over storage.retention.size that pinned and live runs hold."
)

CAPTURES = define("trackside_captures_total", "Captures that have ended.", "trigger", "state")

DATAGRAMS_REFUSED = define(
    "trackside_capture_datagrams_refused_total",
    "Refused datagrams at the socket for PyTorch's profiler; by reason: format, user, process, address.",
    "reason",
)

BRIDGE_SAMPLES = define("trackside_bridge_samples_total", "Samples that the mirror's target has accepted.", "bridge")
BRIDGE_LOST = define(
    "trackside_bridge_lost_total",
    "Samples that the mirror did not send; retention had deleted them, or the target refuses them.",
    "bridge",
)
BRIDGE_FAILURES = define("trackside_bridge_failures_total", "Requests to the target that failed.", "bridge")
BRIDGE_LAG = define(
    "trackside_bridge_lag_seconds", "Age of the oldest sample that the target does not have; 0 if it has all.", "bridge"
)
BRIDGE_LAST_SUCCESS = define(
    "trackside_bridge_last_success_timestamp_seconds", "When the target last accepted samples, in Unix time.", "bridge"
)
