"""Pipes: how messages travel, inside a loop (`mailbox`), out of the house (`cache_feed`) and to an executor (`link`).

Read in this order: `link` (the interface), `wire` and `record` (messages as bytes), `frame` (bytes as checked records),
`ring` (records in shared memory), `bell` and `lifeline` (waking, and seeing the other end's death), then the two
transports that put them together, `ring_transport` and `socket_transport`.
"""
