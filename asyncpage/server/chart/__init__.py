"""The chart room's feed: the running engine, drawn live."""
