"""Simulate GPUs for demonstrations and tests.

In: a board name, a time and the faults to show. Out: the reading that NVML would give.
A pure function of time, so that a new worker continues where the old one stopped.
"""
