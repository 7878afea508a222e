"""Implement each subcommand of ``trackside``.

In: parsed options and a source of runs. Out: printed answers.
"""
