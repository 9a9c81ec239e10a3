"""A model's operators as a table and as data, with the time that each of them took.

`doctor --model` prints it (`step_report`). The numbers are the executor's: `step_graph` and `step_clock` there.

INVARIANT: what the table sums up is what it shows, line by line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asyncpage.executor.step_clock import StepTime, StepTimes
    from asyncpage.executor.step_graph import StepGraph
    from asyncpage.models.operators import Block, Operator

# By the last words of an operator's key, or by the class of a part that is made of others: what it does itself.
_BY_KEY: Mapping[str, str] = {
    "embedding": "embed",
    "angles": "rope angles",
    "before_attention": "input norm",
    "after_attention": "norm behind attention",
    "before_feed_forward": "norm before feed-forward",
    "after_feed_forward": "norm behind feed-forward",
    "qkv": "q/k/v projection",
    "qk_norm": "q/k norm",
    "q_norm": "q norm",
    "k_norm": "k norm",
    "attention.query": "q projection",
    "query.down": "q down projection",
    "query.norm": "q latent norm",
    "query.up": "q up projection",
    "attention.down": "kv down projection",
    "attention.norm": "kv latent norm",
    "write_kv": "write_kv",
    "run": "attention",
    "output": "output projection",
    "advance": "residual",
    "gate_up": "gate/up projection",
    "down": "down projection",
    "router": "router",
    "shared.gate": "gate of the shared expert",
    "norm": "final norm",
    "embedding_norm": "embedding norm",
    "attention_norm": "norm behind attention",
    "feed_forward_norm": "norm behind feed-forward",
    "up": "up projection",
    "head.linear": "lm_head",
    "sampler.sample": "sampling",
    "encode": "embed",
}
_BY_PART: Mapping[str, str] = {
    "SelfAttention": "rope",
    "LatentAttention": "absorbed k/v maps, rope",
    "GatedFeedForward": "activation",
    "MixtureOfExperts": "sort, weigh and add experts",
    "GroupedExperts": "gather experts' rows",
    "WeighedExpert": "weigh the shared expert",
    "WidthNorm": "join q and k",
    "Head": "widen or cap logits",
    "BertLayer": "attention, activation, residual",
}
_BAR = 12
_BETWEEN = "  "


def name_of(operator: Operator) -> str:
    """What people call it; the part's place in the model where nobody gave it a name."""
    words = operator.key.removesuffix(".parts.*").split(".")
    last = [".".join(words[-2:]), words[-1]]
    known = _BY_PART.get(operator.part) or next((_BY_KEY[key] for key in last if key in _BY_KEY), "")
    name = known or ".".join(words[2:] if words[0] == "layers" else words)
    if "experts" in words:
        return name if operator.part == "GroupedExperts" else f"experts: {name}"
    is_of_shared = "shared" in words and "shared expert" not in name
    return f"shared: {name}" if is_of_shared else name


def lines(graph: StepGraph, times: StepTimes | None) -> Iterator[str]:
    """The lines to print."""
    yield from _heading(graph, times)
    rows = [_titles(graph, times)]
    texts: list[str | None] = [None]
    for block in graph.blocks:
        texts.append(_block_title(block))
        for operator in block.operators:
            rows.append(_cells(graph, times, operator))
            texts.append(None)
    if times is not None:
        spent = [times.decode, times.prefill]
        rows.append(["everything else", *[""] * 7, *(_share(one, one.rest_us) for one in spent if one is not None)])
        texts += ["", None]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    cells = iter(rows)
    for text in texts:
        yield _aligned(next(cells), widths) if text is None else text
    yield ""
    yield from _totals(graph)
    yield from _hints(graph, times)


def as_data(graph: StepGraph, times: StepTimes | None) -> dict[str, Any]:
    """The same for programs."""
    return {
        "family": graph.family, "device": graph.device, "attention_backend": graph.backend, "dtype": graph.dtype,
        "kv_cache_dtype": graph.kv_dtype, "context": graph.context, "tokens": graph.tokens,
        "blocks": [
            {"layers": block.layers, "operators": [_operator_data(graph, operator) for operator in block.operators]}
            for block in graph.blocks
        ],
        "totals": {
            "weights": graph.elements, "weights_listed": graph.listed_elements,
            "stored_bytes": sum(graph.stored_sizes.values()),
            "weight_bytes_read": _sum(graph, lambda one: one.read_bytes),
            "kv_bytes_read": _sum(graph, lambda one: one.kv_read_bytes),
            "kv_bytes_written": _sum(graph, lambda one: one.kv_written_bytes),
            "flops": _sum(graph, lambda one: one.flops) // graph.tokens,
        },
        "unused_tensors": graph.unused,
        "native_lists": graph.is_stacked, "called_between": graph.called,
        "times": None if times is None else asdict(times),
    }  # fmt: skip


def _operator_data(graph: StepGraph, operator: Operator) -> dict[str, Any]:
    found = asdict(operator)
    del found["tensors"]
    stored = {
        "stored_as": graph.stored_as.get(operator.key, ()),
        "stored_bytes": graph.stored_bytes.get(operator.key, 0),
    }
    return {"name": name_of(operator), **found, **stored}


def _heading(graph: StepGraph, times: StepTimes | None) -> Iterator[str]:
    where = f"{graph.family} in {graph.dtype} on {graph.device}"
    if graph.is_encoder:
        yield f"{where}; an encoder: one prompt of {graph.context} tokens, all of it at once"
    else:
        attention = f"attention by {graph.backend}, KV cache in {graph.kv_dtype}"
        yield f"{where}, {attention}; a token behind {graph.context - 1} others"
    yield "weights read, KV and FLOPs: of one layer, by one token; FLOPs are those of products"
    for title, one in _measured(times):
        what = f"{one.rows} row{'s' * (one.rows > 1)} of {one.tokens} token{'s' * (one.tokens > 1)}"
        yield f"{title}: share of a step's time, in all layers of the block; {what} took {one.total_us / 1000:.1f} ms"
    yield ""


def _measured(times: StepTimes | None) -> Iterator[tuple[str, StepTime]]:
    if times is not None:
        if times.decode is not None:
            yield "decode", times.decode
        yield "prompt", times.prefill


def _titles(graph: StepGraph, times: StepTimes | None) -> list[str]:
    shares = [f"{title:<{_BAR + 6}}" for title, _ in _measured(times)]
    return ["operator", "activations", "weights", "stored", "held", "weights read", "KV", "FLOPs", *shares]


def _block_title(block: Block) -> str:
    if not block.layers:
        return "once a step"
    times = f" ({block.times} times)" if block.times > 1 else ""
    return f"layer{'s' * (block.times > 1)} {_ranges(block.layers)}{times}"


def _cells(graph: StepGraph, times: StepTimes | None, operator: Operator) -> list[str]:
    kv = operator.kv_read_bytes or operator.kv_written_bytes
    flops = operator.flops // graph.tokens
    has_work = bool(operator.weights or flops)
    return [
        "  " + name_of(operator) + (f" ({operator.note})" if operator.note else ""),
        f"{_shape(operator.taken)} -> {_shape(operator.given)}" if operator.given else _shape(operator.taken),
        _weights(operator),
        "+".join(graph.stored_as.get(operator.key, ())),
        "+".join(operator.held_as),
        _bytes(operator.read_bytes) if operator.read_bytes else "",
        ("writes " if operator.kv_written_bytes else "reads ") + _bytes(kv) if kv else "",
        _count(flops) if has_work and flops else "",
        *(_share(one, one.us.get(operator.key, 0.0)) for _, one in _measured(times)),
    ]


def _weights(operator: Operator) -> str:
    if not operator.weights:
        return ""
    shapes = ", ".join(map(_shape, operator.weights))
    return shapes if operator.parts == 1 else f"{operator.used} of {operator.parts}: {shapes}"


def _share(step: StepTime, us: float) -> str:
    share = us / step.total_us if step.total_us else 0.0
    return f"{100 * share:5.1f}% {'#' * round(_BAR * min(1.0, max(0.0, share)))}"


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    # Texts to the left, numbers to the right.
    sides = [cell.rjust(width) if column in (5, 6, 7) else cell.ljust(width)
             for column, (cell, width) in enumerate(zip(cells, widths, strict=True))]  # fmt: skip
    return _BETWEEN.join(sides).rstrip()


def _totals(graph: StepGraph) -> Iterator[str]:
    reads = _sum(graph, lambda one: one.read_bytes)
    kv_read, kv_written = _sum(graph, lambda one: one.kv_read_bytes), _sum(graph, lambda one: one.kv_written_bytes)
    stored = sum(graph.stored_sizes.values())
    yield f"weights    {graph.elements:,} in the model, {_bytes(stored)} in the files"
    if graph.listed_elements != graph.elements:
        lacking = graph.elements - graph.listed_elements
        yield f"           {lacking:,} of them belong to no operator that is listed"
    if graph.unused:
        more = f" and {len(graph.unused) - 3} more" if len(graph.unused) > 3 else ""
        yield f"           the files also hold what it does not use: {', '.join(graph.unused[:3])}{more}"
    flops = _sum(graph, lambda one: one.flops) // graph.tokens
    if graph.is_encoder:
        yield f"a prompt   reads {_bytes(reads)} of weights; {_count(flops)}FLOPs a token"
        return
    yield f"a step     reads {_bytes(reads)} of weights, once for all its rows"
    yield f"a token    reads {_bytes(kv_read)} of KV cache, writes {_bytes(kv_written)}, takes {_count(flops)}FLOPs"
    yield from _stack(graph)


def _stack(graph: StepGraph) -> Iterator[str]:
    """How layers run, where not part by part."""
    if not graph.is_stacked:
        return
    yield "native     a server runs the layers as lists of native operators; times above are of its parts one by one"
    layers: dict[tuple[str, str], list[int]] = {}
    for place, reason in graph.called.items():
        _, number, part = place.split(".")
        layers.setdefault((part, reason), []).append(int(number))
    for (part, reason), numbers in layers.items():
        yield f"           {part} of layer{'s' * (len(numbers) > 1)} {_ranges(numbers)} is called between: {reason}"


def _hints(graph: StepGraph, times: StepTimes | None) -> Iterator[str]:
    every = [(block.times, operator) for block in graph.blocks for operator in block.operators]
    total = _sum(graph, lambda one: one.read_bytes + one.kv_read_bytes)
    moved: dict[str, int] = {}
    for count, operator in every:
        name = name_of(operator)
        moved[name] = moved.get(name, 0) + count * (operator.read_bytes + operator.kv_read_bytes)
    most = max(moved, key=moved.__getitem__)
    yield f"-> {most} reads {100 * moved[most] / total:.0f}% of a step's bytes"
    for title, one in _measured(times):
        spent: dict[str, float] = {}
        for _, operator in every:
            spent[name_of(operator)] = spent.get(name_of(operator), 0.0) + one.us.get(operator.key, 0.0)
        most = max(spent, key=spent.__getitem__)
        yield f"-> {most} takes {100 * spent[most] / one.total_us:.0f}% of the time of a {title} step"
    if any("experts" in operator.key for _, operator in every):
        yield "   one token's experts are shown; rows together choose more of them, and time is for experts all here"
    yield "   what LoRA adapters add is not shown"


def _sum(graph: StepGraph, amount: Callable[[Operator], int]) -> int:
    return sum(block.times * amount(operator) for block in graph.blocks for operator in block.operators)


def _ranges(numbers: Sequence[int]) -> str:
    """0, 1, 2, 5 as "0-2, 5"; alternating ones as they come."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _shape(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "1"


def _bytes(count: int) -> str:
    return f"{_count(count)}B"


def _count(count: int) -> str:
    for power, letter in ((12, "T"), (9, "G"), (6, "M"), (3, "k")):
        if count >= 10**power:
            return f"{count / 10**power:.{0 if count >= 100 * 10**power else 1}f} {letter}"
    return f"{count} "
