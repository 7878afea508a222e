"""Mirror the history to other tools: one worker process for each, which reads the history by position and retries.

In: the history's file, and a target with its settings. Out: each sample at the target, counters on /metrics.
"""
