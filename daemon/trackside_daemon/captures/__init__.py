"""Record runs on demand and on alert: profiles, stacks, flight recorders, memory snapshots, layers.

In: requests for captures, and the files that recorders leave. Out: `Capture` records with their summaries, and a store of
files with quotas.
"""
