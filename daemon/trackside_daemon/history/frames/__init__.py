"""Read the history from Python, for `trackside.open`: every sample, without a daemon.

In: the history's file, and the name or the id of a run. Out: arrays, and tables of Arrow, pandas and polars, whose
libraries are imported when they are used.
"""
