"""Compare runs: their values, groups of them with statistics, tables, and the gate that a comparison must pass.

In: runs as `trackside show --json` has them. Out: tables as text, Markdown, CSV or JSON, and whether the gate failed.
"""
