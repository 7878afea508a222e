"""Collect samples of the processes that train.

In: /proc of each rank and its children. Out: CPU, memory and I/O of ranks and data loader workers, and how workers died.
"""
