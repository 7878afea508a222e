"""Rank the likely causes of a slow-down by the share of the lost time that each can explain.

In: the machine's series before and during the slow-down. Out: causes as text with numbers, the likeliest first.
"""
