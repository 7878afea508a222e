"""The families of alerts and of their notifications."""

from trackside_daemon.model.metric import Metric, define

# Name of the id by which other systems refer to a job, in evidence, annotations and labels.
CORRELATION = "correlation_id"

# Labels of an alert about a run that name its owner: user, where it runs, and those of its tags that `alerts.tags` lists.
OWNER = ("user", "k8s_namespace", "partition", "tags")

FIRING = define(
    "trackside_alert_firing",
    "1 while the alert fires, 0 for 15 minutes after; if several ranks have it, the label has the first.",
    *("alert", "severity", "run", "rank", "key", "gpu", "uuid", *OWNER, "subject"),
)
TEXT = Metric(
    "trackside_alert_text_info",
    "gauge",
    "1 while the alert fires, with the daemon's own sentence about it; its begin, its machine, its run's page and id "
    "in other systems; for annotations of rules.",
    (*FIRING.labels, "summary", "description", "since", "host", "run_id", "dashboard_url", CORRELATION),
)
BEGUN = define("trackside_alerts_total", "Times that the alert began to fire.", "alert", "severity", "run")
SILENCED = define("trackside_alert_silenced", "1 while the alert fires and a silence mutes it.", *FIRING.labels)
EXCESS = define(
    "trackside_alerts_excess_total", "Alerts that had no room; 1,000 others of at least their severity fire."
)

NOTIFICATIONS = define("trackside_notifications_total", "Messages that a sink of alerts tried to send.", "sink")
NOTIFICATIONS_FAILED = define(
    "trackside_notifications_failed_total",
    "Messages that the sink did not send within 60 s; it retries them.",
    "sink",
)
NOTIFICATIONS_DROPPED = define(
    "trackside_notifications_dropped_total",
    "Notifications that the sink gave up; the alert ended before, or an hour ago, the queue was full, or the receiver "
    "refused it.",
    "sink",
)
NOTIFICATIONS_QUEUED = define(
    "trackside_notifications_queue_length", "Alerts that wait for the sink to send them.", "sink"
)
NOTIFICATIONS_LAST_SUCCESS = define(
    "trackside_notifications_last_success_timestamp_seconds",
    "Time of the last message that the sink sent, in Unix time.",
    "sink",
)
