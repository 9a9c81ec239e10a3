"""Sampling flags of `generate` and `chat`, and the parameters they ask for.

INVARIANT: a flag that was not given leaves the model's default in force; one that was given is checked before
anything is loaded.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from asyncpage.core.sampling import SamplingParams
from asyncpage.errors import RequestError, UsageError

_NUMBERS: tuple[tuple[str, type, str], ...] = (
    ("max_tokens", int, "most tokens to generate (default: up to the model's end token or the end of its context)"),
    ("min_tokens", int, "tokens before the answer may end"),
    ("temperature", float, "0 always takes the likeliest token, higher is more varied"),
    ("top_p", float, "draw from the likeliest tokens that together have this probability"),
    ("top_k", int, "draw from this many likeliest tokens, 0 for all"),
    ("min_p", float, "drop tokens less likely than this share of the likeliest"),
    ("presence_penalty", float, "against tokens that have appeared"),
    ("frequency_penalty", float, "against tokens by how often they have appeared"),
    ("repetition_penalty", float, "divides the logits of tokens seen so far, 1 for none"),
)


def declare_sampling(parser: argparse.ArgumentParser) -> None:
    """Add the sampling flags; `--seed` is the engine's and seeds requests too."""
    group = parser.add_argument_group("sampling")
    for name, kind, text in _NUMBERS:
        group.add_argument("--" + name.replace("_", "-"), type=kind, metavar="N", help=text)
    group.add_argument("--stop", action="append", metavar="TEXT", help="end the answer before this text; repeatable")
    group.add_argument("--ignore-eos", action="store_true", help="go on after the model's end token")


def chosen_sampling(arguments: argparse.Namespace) -> dict[str, Any]:
    """The parameters that were given on the command line, by field name.

    Errors: `UsageError` naming the flag whose value cannot work.
    """
    chosen = {name: value for name, _, _ in _NUMBERS if (value := getattr(arguments, name)) is not None}
    if arguments.stop:
        chosen["stop"] = tuple(arguments.stop)
    if arguments.ignore_eos:
        chosen["ignore_eos"] = True
    try:
        SamplingParams(**chosen).check()
    except RequestError as error:
        flag = "--" + (error.failure.param or "").replace("_", "-")
        raise UsageError(f"{flag}: {error}") from None
    return chosen


def sampling_over(defaults: Mapping[str, Any], chosen: Mapping[str, Any]) -> SamplingParams:
    """The model's defaults with what was chosen on top."""
    return replace(SamplingParams(**defaults), **chosen)
