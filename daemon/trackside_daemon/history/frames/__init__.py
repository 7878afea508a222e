"""Read the samples of a run as arrays, for `questions.opened`, and convert them to tables.

In: a connection, and the id of a run. Out: arrays, and tables of Arrow, pandas and polars, whose libraries are imported when
they are used.
"""
