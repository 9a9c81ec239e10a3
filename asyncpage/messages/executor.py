"""What an executor is sent, and what it says of itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, Literal

from asyncpage.core.sampling import SamplingParams
from asyncpage.messages.values import (
    EMPTY,
    EMPTY_BLOCKS,
    EMPTY_PAIRS,
    EMPTY_TRIPLES,
    Adapter,
    Constraint,
    Int32,
    Pooling,
    RequestId,
)
from asyncpage.records import record


@record(frozen=True, slots=True)
class NewRow:
    """A request moves into a row, whole.

    `tokens`: everything known, int32 little-endian, of which the first `prompt_tokens` are the prompt and the
    first `computed` have their KV in place. `tables`: one a group. `end_token_ids`: ids that end the request
    (masked until `sampling.min_tokens`). `seed`: of the counter-based generator.
    `adapter_slot`: where its adapter `lora` lies, which an executor is told by `LearnAdapter`; 0 for none.
    `constraint`: the grammar that every output token follows; an executor is told of it by name, after `LearnGrammar`.
    A row with `pooling` samples nothing: when all it knows is computed, its vector is answered.
    """

    row: int
    request: RequestId
    tokens: bytes
    prompt_tokens: int
    computed: int
    tables: tuple[bytes, ...]
    sampling: SamplingParams
    seed: int
    end_token_ids: tuple[int, ...] = ()
    bad_word_ids: tuple[tuple[int, ...], ...] = ()
    adapter_slot: int = 0
    constraint: Constraint | None = None
    pooling: Pooling | None = None
    lora: Adapter | None = None


@record(frozen=True, slots=True, eq=False)
class Step:
    """One step's work, as differences to the executor's own state.

    Applied in this order: `removed` rows, `added` rows, `blocks`, `saves`, `loads`, `copies`; then each of `rows`
    computes its next `counts` tokens and, when it has caught up with what it knows, samples. What its count has beyond
    what it knows is how many drafts the executor may try. A step may have no rows.
    `saves`: [S, 2] block, host slot; `copies`: [C, 3] source, destination, tokens (the first slots of the block);
    `loads`: [L, 2] host slot, block.
    A greater `epoch` than the executor's means: start with no rows.
    """

    number: int
    epoch: int
    rows: Int32
    counts: Int32
    removed: Int32 = field(default_factory=lambda: EMPTY)
    added: tuple[NewRow, ...] = ()
    blocks: Int32 = field(default_factory=lambda: EMPTY_BLOCKS)
    copies: Int32 = field(default_factory=lambda: EMPTY_TRIPLES)
    saves: Int32 = field(default_factory=lambda: EMPTY_PAIRS)
    loads: Int32 = field(default_factory=lambda: EMPTY_PAIRS)


@record(frozen=True, slots=True)
class Load:
    """The first message to an executor process: what to load and how. `settings` are plain values."""

    settings: Mapping[str, Any]
    rank: int = 0
    ranks: int = 1


@record(frozen=True, slots=True, eq=False)
class LearnVocabulary:
    """What every token stands for, which masks are made of. Told with the first grammar.

    `text`: the bytes of all tokens in a row, those of a control token as `grammar.control` has them; `lengths` [T]: of
    each, 0 for one that no grammar allows.
    """

    text: bytes
    lengths: Int32


@record(frozen=True, slots=True)
class LearnGrammar:
    """A grammar that rows may name from now on. `forget`: digests of those that no new row will name before it is
    told anew; rows that follow one keep it."""

    constraint: Constraint
    forget: tuple[bytes, ...] = ()


@record(frozen=True, slots=True)
class LearnAdapter:
    """From now on the adapter slot holds this adapter; no row that lives runs with what it held before."""

    slot: int
    adapter: Adapter


Lesson = LearnVocabulary | LearnGrammar | LearnAdapter
"""What an executor must know before a step whose rows name it."""


@record(frozen=True, slots=True)
class LayerGroup:
    """Layers that share a block table. `window` 0 is full attention."""

    kind: Literal["full", "window"]
    window: int
    layers: int

    def first_needed(self, tokens: int, block_size: int) -> int:
        """The first block that the token after `tokens` tokens looks at."""
        return 0 if self.kind == "full" else max(0, tokens - self.window + 1) // block_size


@record(frozen=True, slots=True)
class AdaptableLinear:
    """A linear map that adapters may change, by its weight's name without `.weight`; the weight is [rows, columns]."""

    name: str
    rows: int
    columns: int


@record(frozen=True, slots=True)
class Handshake:
    """The executor has loaded: what it holds and can do. A successor must show the same `fingerprint`.

    `kind`: an encoder makes vectors only, and no KV that another prompt could use. `hidden_size`: numbers in a vector.
    `linears`: what adapters may change, none where the executor was not told to run any.
    `weight_bytes`: of the weights as they are held: those of the kinds `held_as` on the grids of the file, which
    native code called `native` multiplies by, and the others in `weights_dtype`. `stored_as`: the kinds of quantised
    ones in the files; what is not in `held_as` is dequantised. `lack`: why there is no native code where it would have
    been used. `family`: what people call the model's.
    """

    fingerprint: str
    pid: int
    rank: int
    blocks: int
    block_size: int
    groups: tuple[LayerGroup, ...]
    max_model_len: int
    vocab_size: int
    dtype: str
    kv_dtype: str
    device: str
    attention_backend: str
    load_ms: int
    kv_bytes: int
    capabilities: tuple[str, ...] = ()
    kind: Literal["decoder", "encoder"] = "decoder"
    hidden_size: int = 0
    linears: tuple[AdaptableLinear, ...] = ()
    weight_bytes: int = 0
    stored_as: tuple[str, ...] = ()
    weights_dtype: str = ""
    held_as: tuple[str, ...] = ()
    native: str = ""
    lack: str = ""
    family: str = ""


@record(frozen=True, slots=True)
class LoadFailed:
    """The executor cannot load: `kind` is the name of the error class, `reason` its one-line text."""

    kind: str
    reason: str


@record(frozen=True, slots=True, eq=False)
class RunExperts:
    """To a rank that holds a part of the experts: rows of `layer` are coming, `counts[i]` for its i-th expert there."""

    layer: int
    counts: Int32


@record(frozen=True, slots=True)
class RankLoaded:
    """The rank's experts are there, and it waits for the others."""

    rank: int
    pid: int


@record(frozen=True, slots=True)
class Shutdown:
    """Finish what is in the ring and leave."""
