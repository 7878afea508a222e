"""Derive runs, attempts and ranks from client sessions.

In: messages of sessions, process exits and stalls. Out: training families, states of runs and ranks, and run records.
"""
