"""Detectors of reinforcement learning, one file per problem: policies that learn nothing, run away or fall back.

In: samples of the quantities of `trackside.rl_keys`. Out: detections.
"""
