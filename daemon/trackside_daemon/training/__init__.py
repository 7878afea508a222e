"""Derive runs, attempts and ranks from client sessions.

In: sessions, totals and process exits. Out: training families, states of runs and ranks, and run records.
"""
