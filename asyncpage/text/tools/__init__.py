"""Calls of tools: how a model is told of them, how its answer says them, and how an answer is held to the form."""
