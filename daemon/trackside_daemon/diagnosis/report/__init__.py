"""The contents of a report about a run, within a size: its diagnosis, alerts, events, charts, media, and what changed in it.

In: a run of the history. Out: JSON, from which `documents` makes files.
"""
