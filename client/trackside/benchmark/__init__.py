"""Measure models, functions and endpoints: latency, throughput, memory and agreement, with intervals that hold.

In: what to measure, in variants and loads. Out: rounds of samples, and results as JSON. The command `trackside benchmark`
runs this package in a process of its own, in the Python that has the model's packages; `Run.benchmark` runs it in a notebook.
"""
