"""Readers of model containers: headers, metadata and memory maps, without torch."""
