"""Export runs to files and import them.

In and out: CSV, JSON and JSON lines, with every sample.
"""
