"""Measure models, functions and endpoints for `trackside benchmark`.

In: what to measure. Out: results, from processes that measure (`trackside.benchmark`), and how fit the machine was meanwhile.
"""
