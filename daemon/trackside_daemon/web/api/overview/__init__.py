"""Answer the overview: machine, GPUs, runs and alerts as of now, once or as a stream.

In: the newest values, active alerts and the history. Out: one JSON document per second, shared by all listeners.
"""
