"""`trackside attach`: the runs of processes that were started without trackside.

In: a pid, and the daemon. Out: a run of that process, from inside of it where its Python allows that, else on its behalf.
"""
