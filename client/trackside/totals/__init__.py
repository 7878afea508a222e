"""Count what a session has pushed in all.

In: pushed rows, phases, waits and checkpoints. Out: cumulative totals and histograms, which travel with each batch, so
that a restarted daemon continues every counter.
"""
