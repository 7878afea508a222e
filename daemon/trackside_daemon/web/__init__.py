"""Serve HTTP: metrics, health, the API and the dashboard.

In: requests. Out: pages made from the newest values, the history and the active alerts.
"""
