"""Detect trouble in the values a training pushes, one file per detector or family of detectors.

In: samples in order, each with its time. Out: findings. A detector is O(1) per sample and reads no clock.
"""
