"""The first directory of ``$PYTHONPATH`` in a command with `--auto`; Python imports `sitecustomize` from it at its start.

In: the imports of a process. Out: calls of `trackside.auto.method_wrapping` after those that matter. Until then, nothing is imported.
"""
