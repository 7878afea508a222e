"""Metric families by subject, each with its name, unit, labels and help text.

No other file spells the name of a family: collectors, rules, evidence and pages import its constant.
"""
