"""Pass every batch through state, history and detectors, in this order.

In: batches from the sampler and from ingest. Out: the newest values, history records and alerts.
A stage that fails is counted, and the others continue.
"""
