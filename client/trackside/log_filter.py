"""A filter of `logging` that adds the run, the rank, the step and the correlation id to the training's own log lines."""

import logging

from trackside.default_run import correlation_id, open_run

NONE = "-"  # what the fields have without a run, or before the first step


class LogFilter(logging.Filter):
    """Adds fields to log records for formatters: ``run``, ``trackside_run_id``, ``rank``, ``step`` and ``correlation_id``.

    Without an open run the first four are ``-``, and the last is without an id. It opens no run and drops no record. Add
    it to a handler: a logger's filters do not see the records of the loggers below it.

    Example:
        >>> handler = logging.StreamHandler()
        >>> handler.addFilter(trackside.LogFilter())
        >>> handler.setFormatter(logging.Formatter("%(run)s rank %(rank)s step %(step)s: %(message)s"))
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the fields, except those that the record has."""
        run = open_run()
        if run is None:
            fields: dict[str, object] = dict.fromkeys(("run", "trackside_run_id", "rank", "step"), NONE)
        else:
            step = run.queue.session.newest_step()
            fields = {
                "run": run.name,
                "trackside_run_id": run.id,
                "rank": run.rank,
                "step": NONE if step is None else step,
            }
        fields["correlation_id"] = correlation_id() or NONE
        for name, value in fields.items():
            if not hasattr(record, name):
                setattr(record, name, value)
        return True
