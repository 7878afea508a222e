"""The causes of lost time and trouble, each once: its words, its advice, and its question over a window against a baseline.

In: the series of a slow-down and of the half an hour before, for an alert; or a run, compared with nothing, for `why`. Out: the
causes that explain it, with their share of the lost time or the seconds that they cost.
"""
