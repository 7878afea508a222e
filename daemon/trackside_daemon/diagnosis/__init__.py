"""State why a run is slow or broken: where its time went, which causes cost most, and what to try.

In: a run of the history with its attempts, alerts and captures, and the machine's series of its time. Out: a ledger that
sums to the run's wall time, causes with evidence and lost seconds, and lines of text.
"""
