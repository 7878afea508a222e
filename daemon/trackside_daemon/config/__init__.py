"""Machinery of the configuration, for any model of settings.

In: a model, a YAML file, ``TRACKSIDE_*`` variables and flags, the later over the earlier. Out: an instance of the model.
Packages define their sections in ``settings.py``, and `trackside_daemon.service.config` composes them.
"""
