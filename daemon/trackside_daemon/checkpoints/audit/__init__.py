"""Audit checkpoints from outside, in a process of its own: nothing of them is unpickled or executed.

In: the path of a checkpoint, and what the last audit knew of it. Out: its state, with the damaged file and the reason, and
checksums.
"""
