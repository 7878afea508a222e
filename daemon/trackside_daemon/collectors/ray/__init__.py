"""Collect the state of Ray: the nodes on this machine, and the cluster of a dashboard that this machine reaches.

In: processes, the nodes' metrics ports, the dashboard's HTTP API. Out: samples. Ray itself is not imported.
"""
