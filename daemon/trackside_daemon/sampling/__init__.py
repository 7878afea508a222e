"""Run all collectors once per tick.

In: the list of collectors and the sample interval. Out: one batch per collector, with its success and duration.
A collector that hangs keeps its own thread and delays no other.
"""
