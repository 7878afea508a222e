"""Name the ranks for which a run that hangs waits.

In: flight recorders and stacks of the ranks, who did not answer, and the view of NCCL RAS. Out: a `HangVerdict`.
"""
