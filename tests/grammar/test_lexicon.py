"""The vocabulary's trie: every token is found by its bytes, and a node's children lie together."""

from __future__ import annotations

from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from asyncpage.grammar import lexicon
from asyncpage.grammar.lexicon import Lexicon

vocabularies = st.lists(st.binary(max_size=5) | st.integers(0, 30).map(lambda n: b"=" * n), max_size=40)


def text_of(trie: Lexicon, node: int) -> bytes:
    data = b""
    while node:
        data = bytes([trie.bytes[node]]) + data
        node = int(trie.parents[node])
    return data


@settings(max_examples=100, deadline=None)
@given(vocabularies, st.sampled_from([0, 3, 64]), st.integers(0, 9))
def test_nodes_are_the_beginnings_of_all_tokens(vocabulary: list[bytes], deep: int, unnamed: int) -> None:
    with patch.object(lexicon, "DEEP_NODES", deep):
        trie = Lexicon(vocabulary, len(vocabulary) + unnamed)
    beginnings = {token[:n] for token in vocabulary for n in range(len(token) + 1)} | {b""}
    texts = [text_of(trie, node) for node in range(len(trie))]
    assert sorted(texts) == sorted(beginnings)
    assert texts == sorted(texts, key=lambda data: (len(data), data))
    assert [texts[node] for node in trie.nodes[: len(vocabulary)]] == vocabulary
    assert not trie.nodes[len(vocabulary) :].any()
    assert trie.longest == max(map(len, vocabulary), default=0)
    for node, data in enumerate(texts):
        children = range(trie.children[node], trie.children[node + 1])
        assert [texts[child] for child in children] == [
            other for other in texts if other[:-1] == data and len(other) == len(data) + 1
        ]
        ids = sorted(trie.tokens[trie.places[node] : trie.places[node + 1]].tolist())
        assert ids == [id for id, at in enumerate(trie.nodes.tolist()) if at == node]
    broad = trie.levels[-1]
    assert [trie.deep_base + node for node, _, _ in trie.deep] == list(range(broad, len(trie)))
    for node, parent, one in trie.deep:
        assert texts[trie.deep_base + node] == texts[trie.deep_base + parent] + bytes([one])
