"""Read the runs of MLflow, and mirror runs to its servers.

In: file stores, SQLite databases and servers of MLflow; samples. Out: the contents of runs; requests of its REST API.
"""
