"""Keep every sample of every run in one SQLite file.

In: batches and records. Out: acknowledged commits; runs, series and charts for the API and the commands.
"""
