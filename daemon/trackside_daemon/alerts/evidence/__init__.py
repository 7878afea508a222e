"""Gather the evidence of an alert.

In: an alert that begins or gets worse. Out: an `AlertNote` with values, samples, stacks, processes, GPUs and events.
"""
