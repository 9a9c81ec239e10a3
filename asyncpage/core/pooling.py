"""Which requests a model takes: answers, vectors or both, and how its vectors are made.

The engine asks once at start, and for every request before anything is queued.

INVARIANT: a request that passes `check_mode` asks for what the executor does with its row, and for nothing beside.
"""

from __future__ import annotations

from typing import Literal

from asyncpage.core.sampling import SamplingParams
from asyncpage.errors import RequestError, UsageError
from asyncpage.messages import Pooling, RequestOptions

POOLED = SamplingParams(max_tokens=0, temperature=0.0)
"""The sampling parameters of a request that samples nothing."""

ModelKind = Literal["decoder", "encoder"]


def choose_pooling(word: str, found: Pooling | None, kind: ModelKind) -> Pooling | None:
    """How a model's vectors are made: `word` is the user's (`--pooling`), `found` what the model's files say.

    Where they say nothing, an encoder's states are averaged, as is usual for it, and a decoder's last one is taken,
    the only one that has seen the whole prompt; the vector is brought to length 1. None: no embeddings are served.
    Errors: `UsageError` for a word that makes no sense with this kind of model.
    """
    if kind == "encoder" and word == "none":
        raise UsageError("this model makes embeddings only, so --pooling none leaves nothing to serve; leave it out")
    if kind == "decoder" and (word == "cls" or (word == "auto" and found is not None and found.kind == "cls")):
        raise UsageError("in a decoder the first token has seen no other, so cls makes no embedding; use last or mean")
    match word:
        case "none":
            return None
        case "auto":
            return found or Pooling("mean" if kind == "encoder" else "last")
        case "last" | "mean" | "cls":
            return Pooling(word, True if found is None else found.is_normalized)
        case _:
            raise UsageError(f"--pooling must be one of auto, last, mean, cls, none; got {word!r}")


def check_mode(kind: ModelKind, served: Pooling | None, sampling: SamplingParams, options: RequestOptions) -> None:
    """Errors: `RequestError` 400 for a request that the model cannot serve."""
    if options.pooling is None:
        if kind == "encoder":
            raise no_generation()
    elif served is None:
        raise no_embeddings()
    elif options.pooling.kind == "cls" and kind == "decoder":
        raise RequestError("this model's first token has seen no other; pool by last or mean", param="pooling")
    elif sampling.max_tokens != 0 or sampling.n != 1 or sampling.prompt_logprobs is not None or options.echo:
        raise RequestError(
            "a prompt that is to be pooled gets a vector and nothing else: max_tokens must be 0 and n 1, with neither "
            "echo nor prompt_logprobs",
            param="pooling",
        )


def no_generation() -> RequestError:
    """Why an encoder answers no prompt."""
    return RequestError(
        "this model makes embeddings only and generates no text; use /v1/embeddings, or another model",
        code="unsupported",
        param="model",
    )


def no_embeddings() -> RequestError:
    """Why a model whose user said so makes no vectors."""
    return RequestError(
        "this server makes no embeddings (--pooling none); start it with another --pooling, or use another model",
        code="unsupported",
        param="model",
    )
