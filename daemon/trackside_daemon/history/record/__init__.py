"""Write the history.

In: batches and records from a bounded queue. Out: group commits, packed blocks, and a file within its size limits.
One thread does all of it.
"""
