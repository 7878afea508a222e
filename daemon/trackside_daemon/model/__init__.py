"""Define the daemon's vocabulary, shared by all packages.

Metrics, samples, batches, history records, references to sessions, findings, the newest values and the types of settings.
Plain data: nothing here reads a source, a file or a clock.
"""
