"""Proofs: a second digest of a block and everything before it, beside its name.

Blocks outside the device are found by name, and there is no chain of blocks in memory to compare them with, as the
prefix indexes do. A proof is chained like a name, by another function: who finds another prompt's block by a name that
collides finds it with another proof. BLAKE2b takes 0.9 us a block of 16; it is computed for blocks that are published
or looked for outside the device only.

INVARIANT: the proof of a block depends on its root key and on every token up to its end, and on nothing else.
"""

from __future__ import annotations

from hashlib import blake2b

PROOF_BYTES = 32


def root_proof(root: bytes) -> bytes:
    """What the proof of a first block follows. `root`: the key, not its digest."""
    return blake2b(root, digest_size=PROOF_BYTES).digest()


def next_proof(proof: bytes, tokens: bytes) -> bytes:
    """The proof of the block that holds `tokens` (int32 little-endian) behind the one that `proof` is of."""
    return blake2b(proof + tokens, digest_size=PROOF_BYTES).digest()
