"""Export closed runs as Parquet files, to a directory or an object store.

In: the history, and the address of the target. Out: one file for each run and kind, complete or not there.
"""
