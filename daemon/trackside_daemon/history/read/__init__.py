"""Read the history.

In: read-only connections to the history file. Out: runs, series, charts and summaries; times in Unix seconds.
"""
