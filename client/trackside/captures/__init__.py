"""Answer the daemon's questions about this process.

In: questions by kind. Out: stacks, profiles, flight recorders and memory snapshots, recorded with as little GIL as possible.
"""
