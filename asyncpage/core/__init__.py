"""Decisions as pure functions of values: who runs, with how many tokens, in which blocks.

Nothing here knows asyncio, torch, the time or randomness.
"""
