"""Write alerts to the daemon's log.

In: alerts that begin, get worse or end. Out: one log line each, at once and also for silenced alerts.
"""
