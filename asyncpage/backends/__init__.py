"""Attention backends: the contract, the registry that finds and chooses, and the two built in.

Read in this order: `contract`, `registry` and `device`, `reference` (what attention means), then `cpu` and `cpu_plan`.
"""
