"""Names of blocks in a replay: today's, made of recorded ids, beside the pseudonyms that a journal has for true ones.

Only what lies in files is named in a journal, since the archive's answers come from outside. The names of blocks that
this engine stored are learned when it stores or fetches them; those that lay in the folder at its start are computed,
each from the one before, from the roots that the journal knows.

INVARIANT: one pseudonym stands for one name, and the other way round.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from asyncpage.core.block_names import extend_chain, root_key, root_name
from asyncpage.core.block_proof import PROOF_BYTES, next_proof, root_proof
from asyncpage.messages import BlockLabel
from asyncpage.pipes.journal.pseudonym import AsRecorded


class BlockNames(AsRecorded):
    """Writes a name as its pseudonym. Ids and salts are pseudonyms already."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._names: dict[bytes, bytes] = {}  # by pseudonym
        self._pseudonyms: dict[bytes, bytes] = {}
        self._proofs: dict[bytes, bytes] = {}  # by name

    def of_digest(self, digest: bytes) -> bytes:
        return self._pseudonyms.get(digest, b"")

    def learn_root(self, pseudonym: bytes, salt: str, adapter: str) -> None:
        """The name that first blocks under this salt and adapter follow."""
        key = root_key(self._block_size, salt=salt, adapter=adapter)
        self._learn(pseudonym, root_name(key), root_proof(key))

    def learn(self, recorded: tuple[bytes, bytes], label: BlockLabel) -> None:
        """Today's label stands where one with these pseudonyms of name and parent was recorded."""
        self._learn(recorded[0], label.name, label.proof)
        self._learn(recorded[1], label.parent, None)

    def find(self, labels: Iterable[BlockLabel]) -> tuple[BlockLabel, ...]:
        """Recorded labels under today's names, in their order; what follows no known root gets names of nobody."""
        labels = tuple(labels)
        waiting: dict[bytes, list[BlockLabel]] = {}
        for label in labels:
            waiting.setdefault(label.parent, []).append(label)
        known = [parent for parent in waiting if parent in self._names]
        for parent in known:  # grows as it goes
            before = self._names[parent]
            for label in waiting[parent]:
                if label.name not in self._names:
                    (name,) = extend_chain(before, label.tokens, self._block_size)
                    self._learn(label.name, name, next_proof(self._proofs.get(before, b""), label.tokens))
                    if label.name in waiting:
                        known.append(label.name)
        return tuple(
            replace(label, name=name, parent=self._name(label.parent), proof=self._proofs.get(name, bytes(PROOF_BYTES)))
            for label in labels
            for name in (self._name(label.name),)
        )

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
