"""The tokenizer actor: a validated prompt in, token ids and names of their blocks out.

Front ends send `Tokenize`, `Encode` and `Cancel`; it sends `Admit` and `Cancel` to the scheduler, `Refused` and
`Encoded` to front ends.
A prompt is worked off in slices behind the mailbox, so a long one holds up nobody.

INVARIANT: each choice of a `Tokenize` gets either its `Refused` here or a place in one `Admit`, each `Encode` its
`Refused` or its `Encoded`; a `Cancel` never overtakes the `Admit` it belongs to.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from functools import lru_cache

import numpy as np

from asyncpage.actors.base import Actor, Continuation
from asyncpage.clock import Clock
from asyncpage.core.block_names import root_key, root_name
from asyncpage.core.recent_names import RecentNames
from asyncpage.errors import Failure, RequestError, UnknownMessage
from asyncpage.messages import (
    Admit,
    Cancel,
    ChatPrompt,
    Encode,
    Encoded,
    Int32,
    Prompt,
    Refused,
    RequestId,
    TextPrompt,
    Tokenize,
    TokenPrompt,
    frontend_of,
)
from asyncpage.pipes.mailbox import Address
from asyncpage.text.chat_template import ChatTemplate
from asyncpage.text.control_guard import strings_in
from asyncpage.text.tokenizer import Tokenizer

SLICE_S = 0.0005  # what a step in flight can be kept waiting for
BLOCKS_A_SLICE = 256  # to be named: about 0.4 ms
# A prompt of more bytes than this many for each token of context is refused unread: text takes 3 to 5 bytes a token,
# and reading it first would cost a second a megabyte.
BYTES_A_TOKEN = 16
SPARE_BYTES = 4096
_UNSIGNED = np.dtype("<u4")
MAX_BAD_WORD_TOKENS = 8192  # of one request: the executor looks through them all at every token


class TokenizerActor(Actor):
    """Its only state are the prompts in work, which a restart fails: it can be started anew at any time.

    What it remembers of the last prompts saves work, and changes nothing.

    `block_size`, `max_model_len`, `vocab_size`: the executor's. `template`: None where the model has none.
    """

    name = "tokenizer"

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: ChatTemplate | None,
        *,
        block_size: int,
        max_model_len: int,
        vocab_size: int,
        scheduler: Address,
        frontends: Sequence[Address],
        clock: Clock,
    ) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._block_size = block_size
        self._max_model_len = max_model_len
        self._vocab_size = vocab_size
        self._most_bytes = BYTES_A_TOKEN * max_model_len + SPARE_BYTES
        self._scheduler = scheduler
        self._frontends = frontends
        self._clock = clock
        self._names = RecentNames(block_size)
        self._in_work: dict[RequestId, _Job] = {}
        self._prompts = 0
        self._refused = 0
        self._tokens = 0

    def receive(self, message: object) -> Continuation | None:
        match message:
            case Tokenize() | Encode():
                return self._begin(message)
            case Cancel():
                self._cancel(message)
            case _:
                raise UnknownMessage(self, message)
        return None

    def fail(self, message: object, error: Exception) -> bool:
        """A prompt that cannot be tokenised harms its own request only."""
        if not isinstance(message, (Tokenize, Encode)):
            return False
        if isinstance(error, RequestError):
            failure = error.failure
        else:
            failure = Failure(500, f"the prompt could not be tokenized: {type(error).__name__}", "internal_error")
        self._refuse(_choices(message), failure)
        return True

    def stats(self) -> Mapping[str, float]:
        return {
            "prompts_in_work": len({id(job) for job in self._in_work.values()}),
            "prompts": self._prompts,
            "prompts_refused": self._refused,
            "prompt_tokens": self._tokens,
        }

    def _begin(self, message: Tokenize | Encode) -> Continuation | None:
        """The first slice of a prompt's work, mostly all of it, and what is left."""
        slices = self._work(message) if isinstance(message, Tokenize) else self._encode(message)
        try:
            next(slices)
        except StopIteration as end:
            self._send(end.value)
            return None
        job = _Job(message, slices)
        self._in_work.update(dict.fromkeys(job.choices, job))
        return lambda: self._go_on(job)

    def _go_on(self, job: _Job) -> Continuation | None:
        """One more slice, and what is left."""
        if job.is_dropped:
            return None
        try:
            next(job.slices)
        except StopIteration as end:
            self._forget(job.choices)
            self._send(end.value)
            for request in sorted(job.cancelled):
                self._scheduler.send(Cancel(request))
            return None
        return lambda: self._go_on(job)

    def _send(self, made: Admit | Encoded) -> None:
        if isinstance(made, Encoded):
            self._frontends[frontend_of(made.request)].send(made)
            return
        self._prompts += 1
        self._tokens += len(made.tokens) // 4
        self._scheduler.send(made)

    def _cancel(self, cancel: Cancel) -> None:
        job = self._in_work.get(cancel.request)
        if job is None:
            self._scheduler.send(cancel)
            return
        job.cancelled.add(cancel.request)
        if len(job.cancelled) < len(job.choices):
            return  # the others still want the prompt; the cancel goes behind their common `Admit`
        job.is_dropped = True
        job.slices.close()
        self._refuse(job.choices, Failure(499, "the client left before its prompt was read", "cancelled"))

    def _refuse(self, choices: Sequence[RequestId], failure: Failure) -> None:
        self._forget(choices)
        self._refused += 1
        for request in choices:
            self._frontends[frontend_of(request)].send(Refused(request, failure))

    def _forget(self, choices: Sequence[RequestId]) -> None:
        for request in choices:
            self._in_work.pop(request, None)

    def _work(self, message: Tokenize) -> Generator[None, None, Admit]:
        """Everything between a prompt and its `Admit`, yielding between slices."""
        options, sampling = message.options, message.sampling
        tokens = yield from self._tokens_of(message.prompt)
        keep = options.truncate_prompt_tokens
        if keep is not None:
            if keep < 1:
                raise RequestError(
                    f"truncate_prompt_tokens must be at least 1, got {keep}", param="truncate_prompt_tokens"
                )
            tokens = tokens[-4 * keep :] if options.pooling is None else self._beginning(message.prompt, tokens, keep)
        self._check_length(message, len(tokens) // 4)
        names: tuple[bytes, ...] = ()
        if options.use_cache:
            root = _root(self._block_size, options.cache_salt, options.adapter)
            width = 4 * self._block_size * BLOCKS_A_SLICE
            names = self._names.extend_chain(root, tokens[:width])
            for start in range(width, len(tokens), width):
                yield
                names += self._names.extend_chain(names[-1], tokens[start : start + width])
        bad_word_ids: tuple[tuple[int, ...], ...] = ()
        if sampling.bad_words:
            bad_word_ids = yield from self._bad_word_ids(sampling.bad_words)
        return Admit(message.request, tokens, names, sampling, options, bad_word_ids)

    def _encode(self, message: Encode) -> Generator[None, None, Encoded]:
        """A prompt that will not run may be longer than the context, and of no tokens."""
        return Encoded(message.request, (yield from self._tokens_of(message.prompt)))

    def _tokens_of(self, prompt: Prompt) -> Generator[None, None, bytes]:
        if isinstance(prompt, TokenPrompt):
            self._check_range(prompt.tokens)
            return prompt.tokens
        return (yield from self._ids(prompt)).tobytes()

    def _ids(self, prompt: TextPrompt | ChatPrompt) -> Generator[None, None, Int32]:
        """The prompt's ids, int32 little-endian."""
        match prompt:
            case TextPrompt(text, add_special):
                self._check_size(text, "prompt")
                found = yield from self._tokenizer.encode_slices(
                    text, add_special=add_special, slice_s=SLICE_S, now=self._clock.now
                )
            case ChatPrompt() as chat:
                if self._template is None:
                    raise RequestError("this model has no chat template; send the prompt as text", param="messages")
                strings, _ = strings_in((chat.messages, chat.tools))
                self._check_size("".join(strings), "messages")
                rendered = yield from self._template.render_slices(
                    chat, wall_s=self._clock.wall(), slice_s=SLICE_S, now=self._clock.now
                )
                self._check_size(rendered.text, "messages")
                found = yield from self._tokenizer.encode_slices(
                    rendered.text,
                    add_special=chat.add_special,
                    guard=rendered.guard,
                    slice_s=SLICE_S,
                    now=self._clock.now,
                )
        return np.array(found, dtype="<i4")

    def _bad_word_ids(self, words: Sequence[str]) -> Generator[None, None, tuple[tuple[int, ...], ...]]:
        """Each bad word as a model writes it, inside of a text: behind a space, and behind anything else."""
        found: dict[tuple[int, ...], None] = {}
        tokens = 0
        for word in words:
            bare = word.lstrip(" ")
            for text in (bare, " " + bare) if bare else (word,):
                ids = yield from self._tokenizer.encode_slices(
                    text, add_special=False, continues=True, slice_s=SLICE_S, now=self._clock.now
                )
                if not ids:
                    raise RequestError(f"bad_words: {word!r} has no tokens in this model", param="bad_words")
                tokens += len(ids)
                if tokens > MAX_BAD_WORD_TOKENS:
                    raise RequestError(
                        f"bad_words take more than {MAX_BAD_WORD_TOKENS} tokens in all, with and without a space in "
                        "front; send fewer or shorter ones",
                        param="bad_words",
                    )
                found[tuple(ids)] = None
        return tuple(found)

    def _check_size(self, text: str, param: str) -> None:
        # Characters first: a text that is too long is not copied to be counted.
        size = len(text)
        if size <= self._most_bytes:
            size = len(text.encode("utf-8", "surrogatepass"))
        if size > self._most_bytes:
            raise RequestError(
                f"the prompt has {size} bytes or more; for this model's context of {self._max_model_len} tokens it may "
                f"have {self._most_bytes}",
                code="context_length_exceeded",
                param=param,
            )

    def _beginning(self, prompt: Prompt, tokens: bytes, keep: int) -> bytes:
        """The first `keep` tokens; what the model wants behind a text stays there."""
        behind = self._tokenizer.suffix_ids if isinstance(prompt, TextPrompt) else ()
        if len(tokens) <= 4 * keep or len(behind) >= keep:
            return tokens[: 4 * keep]
        return tokens[: 4 * (keep - len(behind))] + tokens[len(tokens) - 4 * len(behind) :]

    def _check_range(self, tokens: bytes) -> None:
        # As unsigned numbers the negative ones are the greatest: one look finds either kind.
        if tokens and int(np.maximum.reduce(np.frombuffer(tokens, dtype=_UNSIGNED))) >= self._vocab_size:
            ids = np.frombuffer(tokens, dtype="<i4")
            at = int(np.flatnonzero((ids < 0) | (ids >= self._vocab_size))[0])
            raise RequestError(
                f"prompt: token id {int(ids[at])} at index {at} is outside the vocabulary of {self._vocab_size}",
                param="prompt",
            )

    def _check_length(self, message: Tokenize, length: int) -> None:
        param = "messages" if isinstance(message.prompt, ChatPrompt) else "prompt"
        if not length:
            raise RequestError("the prompt is empty; send at least one token", param=param)
        wants_none = message.sampling.max_tokens == 0
        if length > self._max_model_len or (length == self._max_model_len and not wants_none):
            room = "for it" if length > self._max_model_len else "for an answer"
            raise RequestError(
                f"the prompt has {length} tokens and the context is {self._max_model_len}: no room {room}; "
                "shorten the prompt, or set truncate_prompt_tokens",
                code="context_length_exceeded",
                param=param,
            )


class _Job:
    """A prompt in work: its choices, those that were cancelled meanwhile, and the work that is left."""

    __slots__ = ("cancelled", "choices", "is_dropped", "slices")

    def __init__(self, message: Tokenize | Encode, slices: Generator[None, None, Admit | Encoded]) -> None:
        self.choices = _choices(message)
        self.cancelled: set[RequestId] = set()
        self.is_dropped = False
        self.slices = slices


@lru_cache(maxsize=1024)
def _root(block_size: int, salt: str, adapter: str) -> bytes:
    return root_name(root_key(block_size, salt=salt, adapter=adapter))


def _choices(message: Tokenize | Encode) -> tuple[RequestId, ...]:
    if isinstance(message, Encode):
        return (message.request,)
    return tuple(RequestId(message.request + choice) for choice in range(message.sampling.n))
