"""Reports of runs: one HTML file that needs no network, Markdown, JSON, and an SVG file for each chart.

In: runs of the history with their diagnoses, alerts, events and charts. Out: text. What a run wrote is escaped.
"""
