"""`asyncpage backends`: the attention backends installed here, and why each would or would not be chosen.

Asks the registry about one shape of attention on one device, which need not be present.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING

from asyncpage.cli.command import Command, Environment

if TYPE_CHECKING:
    from asyncpage.backends.contract import AttentionSpec, DeviceInfo
    from asyncpage.backends.registry import Verdict

_EXAMPLES = """\
examples:
  asyncpage backends                                  the names, the one that "auto" takes marked with *
  asyncpage backends --explain                        with the reasons, for this machine and the demo's shape
  asyncpage backends --explain --as sm90 --head-dim 128 --q-heads 32 --kv-heads 8 --dtype bfloat16

A backend is a class behind the entry-point group asyncpage.attention_backends; choose one with
'asyncpage serve --attention-backend NAME'.
"""


def _declare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--explain", action="store_true", help="show the reasons, and what choosing a backend gives")
    parser.add_argument("--json", action="store_true", help="everything as one JSON list")
    parser.add_argument("--as", dest="device", metavar="DEVICE", help="ask for cpu, sm90, gfx942, ... instead of here")
    group = parser.add_argument_group("the attention asked about (default: the demo model's)")
    group.add_argument("--q-heads", type=int, default=9, metavar="N", help="query heads (default 9)")
    group.add_argument("--kv-heads", type=int, default=3, metavar="N", help="key and value heads (default 3)")
    group.add_argument("--head-dim", type=int, default=64, metavar="N", help="size of a head (default 64)")
    group.add_argument("--window", type=int, default=0, metavar="N", help="sliding window in tokens, 0 for none")
    group.add_argument("--block-size", type=int, default=16, metavar="N", help="tokens in a KV block (default 16)")
    group.add_argument("--dtype", default="float32", help="type of queries and of the cache (default float32)")
    group.add_argument("--kv-cache-dtype", metavar="DTYPE", help="type of the cache, where it differs")


def _run(arguments: argparse.Namespace, environment: Environment) -> int:
    from asyncpage.backends.registry import explain

    spec = _spec(arguments)
    device = _device(arguments.device)
    verdicts = explain(spec, device)
    if arguments.json:
        print(json.dumps([asdict(verdict) for verdict in verdicts], indent=2))
    elif arguments.explain:
        print(f"on {device}, for {spec.q_heads} query heads over {spec.kv_heads} of size {spec.head_dim}, {spec.dtype}")
        for verdict in verdicts:
            print(_paragraph(verdict, max(len(verdict.name) for verdict in verdicts)))
        if not any(verdict.is_chosen for verdict in verdicts):
            print("auto finds none: a server would not start without --attention-backend NAME")
    else:
        for verdict in verdicts:
            print(_mark(verdict) + verdict.name)
    return 0


def demo_spec() -> AttentionSpec:
    """The attention of the demo model in float32."""
    from asyncpage.backends.contract import AttentionSpec

    return AttentionSpec(
        kind="mha",
        q_heads=9,
        kv_heads=3,
        head_dim=64,
        v_head_dim=64,
        dtype="float32",
        kv_dtype="float32",
        block_size=16,
    )


def _spec(arguments: argparse.Namespace) -> AttentionSpec:
    return replace(
        demo_spec(),
        q_heads=arguments.q_heads,
        kv_heads=arguments.kv_heads,
        head_dim=arguments.head_dim,
        v_head_dim=arguments.head_dim,
        dtype=arguments.dtype,
        kv_dtype=arguments.kv_cache_dtype or arguments.dtype,
        block_size=arguments.block_size,
        window=arguments.window,
    )


def _device(name: str | None) -> DeviceInfo:
    from asyncpage.backends.device import device_named, present_device

    if name is not None:
        return device_named(name)
    return device_named("cpu") if find_spec("torch") is None else present_device()


def _mark(verdict: Verdict) -> str:
    return "* " if verdict.is_chosen else "  "


def _paragraph(verdict: Verdict, width: int) -> str:
    texts = verdict.reasons or (verdict.gives,)
    lines = [f"{_mark(verdict)}{verdict.name.ljust(width)}   {'no: ' if verdict.reasons else 'yes: '}{texts[0]}"]
    lines += [" " * (width + 9) + text for text in texts[1:]]
    return "\n".join([*lines, " " * (width + 5) + f"from {verdict.origin}"])


COMMAND = Command(
    "backends",
    "[--explain] [--as DEVICE] [--json]",
    "list attention backends and say why each would be chosen",
    _EXAMPLES,
    _declare,
    _run,
)
