"""Names of blocks in a replay: today's, made of recorded ids, beside the pseudonyms that a journal has for true ones.

Only what lies in files is named in a journal, since the archive's answers come from outside. The names of blocks that
this engine stored are learned when it stores or fetches them; those that lay in the folder at its start are computed,
each from the one before, from the roots that the journal knows.

INVARIANT: one pseudonym stands for one name, and the other way round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from asyncpage.core.block_names import extend_chain, root_key, root_name
from asyncpage.core.block_proof import PROOF_BYTES, next_proof, root_proof
from asyncpage.messages import NO_PARENT, BlockLabel
from asyncpage.pipes.journal.pseudonym import AsRecorded


class BlockNames(AsRecorded):
    """Writes a name as its pseudonym. Ids and salts are pseudonyms already."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._names: dict[bytes, bytes] = {}  # by pseudonym
        self._pseudonyms: dict[bytes, bytes] = {}
        self._proofs: dict[bytes, bytes] = {}  # by name
        self._roots: dict[bytes, bytes] = {}  # keys, by the pseudonym of a first block

    def of_digest(self, digest: bytes) -> bytes:
        return self._pseudonyms.get(digest, b"")

    def learn_root(self, pseudonym: bytes, salt: str, adapter: str) -> None:
        """The first block under this pseudonym belongs to this salt and adapter."""
        self._roots[pseudonym] = root_key(self._block_size, salt=salt, adapter=adapter)

    def learn(self, recorded: tuple[bytes, bytes], label: BlockLabel) -> None:
        """Today's label stands where one with these pseudonyms of name and parent was recorded."""
        self._learn(recorded[0], label.name, label.proof)
        if label.parent != NO_PARENT:
            self._learn(recorded[1], label.parent, None)

    def find(self, labels: Sequence[BlockLabel]) -> tuple[BlockLabel, ...]:
        """Recorded labels under today's names, in their order; what hangs on no known root gets names of nobody."""
        behind: dict[bytes, list[BlockLabel]] = {}
        for label in labels:
            behind.setdefault(label.parent, []).append(label)
        known = []
        for label in behind.get(NO_PARENT, ()):
            if label.name in self._roots:
                root = self._roots[label.name]
                self._extend(label, root_name(root), root_proof(root))
                known.append(label.name)
        for parent in known:  # grows as it goes
            for label in behind.pop(parent, ()):
                self._extend(label, self._names[parent], self._proofs[self._names[parent]])
                known.append(label.name)
        return tuple(map(self._today, labels))

    def _extend(self, label: BlockLabel, parent: bytes, proof: bytes) -> None:
        name = b"".join(extend_chain(parent, label.tokens, self._block_size))
        self._learn(label.name, name, next_proof(proof, label.tokens))

    def _today(self, label: BlockLabel) -> BlockLabel:
        name = self._name(label.name)
        parent = label.parent if label.parent == NO_PARENT else self._name(label.parent)
        return replace(label, name=name, parent=parent, proof=self._proofs.get(name, bytes(PROOF_BYTES)))

    def find_keys(self, keys: Sequence[bytes]) -> tuple[bytes, ...]:
        """The same for keys: a name and a group."""
        return tuple(self._name(key[:-1]) + key[-1:] for key in keys)

    def _name(self, pseudonym: bytes) -> bytes:
        return self._names.get(pseudonym, pseudonym + pseudonym)

    def _learn(self, pseudonym: bytes, name: bytes, proof: bytes | None) -> None:
        if pseudonym not in self._names and name not in self._pseudonyms:
            self._names[pseudonym] = name
            self._pseudonyms[name] = pseudonym
        if proof is not None and self._names.get(pseudonym) == name:
            self._proofs[name] = proof
