"""Actors: each owns its state, reads one mailbox and sends messages; none imports another."""
