"""Detect trouble inside a model, by layer.

In: distributions of weights, gradients, activations and attention, as one rank sends them at some of its steps. Out: detections
with the layer's name as key.
"""
