"""The engine without a model: made-up tokens, modelled or no step times, and a clock that may be virtual."""
