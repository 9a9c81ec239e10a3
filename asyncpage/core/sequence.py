"""One choice of one request as the scheduler knows it: its tokens, its limits and where it stands."""

from __future__ import annotations

import hashlib
from array import array
from dataclasses import dataclass, field

from asyncpage.core.block_names import extend_chain, root_key, root_name
from asyncpage.core.sampling import SamplingParams
from asyncpage.messages import Admission, Admit, Candidate, NewRow, Prefix, RequestId, RequestOptions


@dataclass(slots=True, eq=False)
class Sequence:
    """Mutable state of a request, owned by the scheduler.

    `tokens`: prompt and accepted output, int32, while it runs without what it has got in this row. `limit`: most
    tokens it may ever have. `arrival` counts requests in the order they were accepted. `root`: its root key in the
    prefix index; `names`: the hash chain of its full blocks as far as it is known here. `row` is -1 while it waits;
    `children` wait until this one's prompt is computed, to share its blocks. `hit_blocks`: its full blocks that are
    cached, kept up to date while it waits under a policy that asks. `computed`: tokens that had their KV when it was
    last preempted, 0 since it has run again. `adapter_slot`: of the row it has now.
    """

    request: RequestId
    tokens: array[int]
    prompt_tokens: int
    limit: int
    arrival: int
    root: bytes
    names: tuple[bytes, ...]
    sampling: SamplingParams
    options: RequestOptions
    seed: int
    end_token_ids: tuple[int, ...]
    bad_word_ids: tuple[tuple[int, ...], ...]
    leader: Sequence | None = None
    children: list[Sequence] = field(default_factory=list)
    row: int = -1
    has_started: bool = False
    reported: int = 1  # prompt positions whose log-probabilities were sent on; the first token has none
    hit_blocks: int = 0
    computed: int = 0
    adapter_slot: int = 0
    candidate: Candidate | None = None

    @property
    def wants_prompt_logprobs(self) -> bool:
        return self.sampling.prompt_logprobs is not None

    @property
    def _must_see_prompt(self) -> bool:
        """What the states of its whole prompt tell is still to come, so the prompt must be computed."""
        if self.options.pooling is not None:
            return self.options.pooling.kind != "last"
        return self.wants_prompt_logprobs and self.reported < self.prompt_tokens

    @property
    def is_silent(self) -> bool:
        """It makes no token, and must run all the same for what its prompt tells."""
        has_more = self.wants_prompt_logprobs and self.prompt_tokens > 1  # a first token has no log-probability
        return self.is_complete and (self.options.pooling is not None or has_more)

    @property
    def most_computed(self) -> int:
        """Tokens to compute at most: nothing comes after the last that it may have, unless its state is wanted."""
        return self.limit if self.options.pooling is not None else self.limit - 1

    @property
    def is_complete(self) -> bool:
        """It has every token it may have."""
        return len(self.tokens) >= self.limit

    def extend_names(self, block_size: int) -> None:
        """Name the full blocks of accepted tokens that have no name yet, so that a resumed request can find them."""
        if self.options.use_cache:
            parent = self.names[-1] if self.names else root_name(self.root)
            rest = self.tokens[len(self.names) * block_size :].tobytes()
            self.names += extend_chain(parent, rest, block_size)

    @property
    def prefix(self) -> Prefix:
        """What it brings to the prefix index."""
        return Prefix(self.root, self.tokens.tobytes(), self.names)

    def as_candidate(self) -> Candidate:
        """What the KV manager needs to let it in, the same until it has run."""
        if self.candidate is None:
            self.candidate = Candidate(
                request=self.request,
                known=min(len(self.tokens), self.most_computed),
                prefix=self.prefix,
                read_cache=self.options.use_cache and not self._must_see_prompt,
                feed_cache=self.options.use_cache,
                label=self.options.label,
            )
        return self.candidate

    def as_new_row(self, admission: Admission) -> NewRow:
        """What the executor needs to run it in the row it was given."""
        return NewRow(
            row=admission.row,
            request=self.request,
            tokens=self.tokens.tobytes(),
            prompt_tokens=self.prompt_tokens,
            computed=admission.computed,
            tables=admission.tables,
            sampling=self.sampling,
            seed=self.seed,
            end_token_ids=self.end_token_ids,
            bad_word_ids=self.bad_word_ids,
            adapter_slot=self.adapter_slot,
            constraint=self.options.constraint,
            pooling=self.options.pooling,
            lora=self.options.lora,
        )


def sequences(
    admit: Admit, *, arrival: int, max_tokens: int, block_size: int, eos_ids: tuple[int, ...], seed: int
) -> list[Sequence]:
    """The choices of an admitted prompt; all but the first are children of the first.

    `max_tokens`: the context limit. A choice's seed depends on the request's seed and the choice's place only; a
    request without a seed takes one from the engine's `seed` and its own id.
    """
    sampling, options = admit.sampling, admit.options
    prompt = array("i", admit.tokens)
    limit = max_tokens if sampling.max_tokens is None else min(len(prompt) + sampling.max_tokens, max_tokens)
    root = root_key(block_size, salt=options.cache_salt, adapter=options.adapter)
    ends = sampling.stop_token_ids if sampling.ignore_eos else (*eos_ids, *sampling.stop_token_ids)
    ends = tuple(dict.fromkeys(ends))
    made: list[Sequence] = []
    for choice in range(sampling.n):
        if sampling.seed is None:
            own_seed = _mix("request", seed, admit.request + choice)
        else:
            own_seed = _mix("choice", sampling.seed, choice)
        made.append(
            Sequence(
                request=RequestId(admit.request + choice),
                tokens=prompt if choice == 0 else prompt[:],
                prompt_tokens=len(prompt),
                limit=limit,
                arrival=arrival + choice,
                root=root,
                names=admit.names,
                sampling=sampling,
                options=options,
                seed=own_seed,
                end_token_ids=ends,
                bad_word_ids=admit.bad_word_ids,
                leader=made[0] if made else None,
            )
        )
    made[0].children = made[1:]
    return made


def _mix(what: str, *numbers: int) -> int:
    """A 63-bit number from a word and some numbers, the same everywhere."""
    text = "/".join((what, *map(str, numbers)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1
