"""Summarise profiles: where the time of a step goes, what limits it, and what changed between two profiles.

In: traces that PyTorch wrote, which are hostile, and are therefore read in a worker process with limits. Out: summaries
as JSON, their text, differences, and the traces with the marks that viewers need.
"""
