"""Pass every batch through state, history, detectors and alerts, in this order; each handles the samples or the records.

In: batches from the sampler and from ingest. Out: the newest values, history records and alerts.
A stage that fails is counted, and the others continue.
"""
