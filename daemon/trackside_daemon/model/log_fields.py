"""Fields of a line of the JSON log that link it to a run, to an alert and to other systems."""

from typing import Any

ATTRIBUTE = "trackside"  # of a `logging.LogRecord` that has such fields


def log_fields(
    run_id: str = "", run: str = "", rank: object = None, alert_id: str = "", correlation_id: str = ""
) -> dict[str, Any]:
    """Return the argument ``extra`` of a call of `logging`.

    Args:
        run_id: Id of the run; empty for the machine, as in all arguments.
        run: Its name.
        rank: The rank; None or empty for the whole run.
        alert_id: `Alert.fingerprint`.
        correlation_id: Id by which other systems refer to the job.
    """
    texts = {"trackside_run_id": run_id, "run": run, "rank": "" if rank is None else str(rank)}
    texts |= {"alert_id": alert_id, "correlation_id": correlation_id}
    return {ATTRIBUTE: {name: text for name, text in texts.items() if text}}
