"""The conformance kit for attention backends: `pytest --pyargs asyncpage.testing.attention --attention-backend NAME`.

For whoever writes a backend. Each case plays steps over a cache full of NaN, with block tables and padding that must
not be read, and compares with float64. What the backend refuses by `unsupported` is skipped with its reasons.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from asyncpage.backends.contract import API, OLDEST_API, AttentionBackend, AttentionSpec, DeviceInfo, GraphSupport
from asyncpage.backends.device import present_device
from asyncpage.backends.memory import allocate_kv
from asyncpage.backends.registry import load
from asyncpage.testing.attention_scene import (
    TOLERANCE,
    Scene,
    make_latent_spec,
    make_spec,
    relative_error,
    token_items,
)

Backend = type[AttentionBackend[Any]]

# Decodes of like and unlike length, a first token, a whole prompt, a later chunk, a chunk across block ends.
MIXED = [(0, 40, 41), (1, 0, 1), (2, 0, 37), (3, 30, 63), (4, 127, 128), (5, 16, 17), (6, 15, 18), (7, 41, 42)]
MIXED_LENGTHS = [41, 1, 37, 63, 128, 17, 18, 42]

# Makes a spec of each kind; a backend need not serve them all.
KINDS = {"mha": make_spec, "mla": make_latent_spec}


@pytest.fixture(name="attention_backend")
def fixture_attention_backend(request: pytest.FixtureRequest) -> Backend:
    """The backend under examination."""
    return load(str(request.config.getoption("--attention-backend")))


@pytest.fixture(name="attention_device")
def fixture_attention_device(request: pytest.FixtureRequest) -> DeviceInfo:
    """Where it runs."""
    return present_device(str(request.config.getoption("--attention-device")))


def make_scene(backend: Backend, device: DeviceInfo, spec: AttentionSpec, lengths: list[int], **kwargs: Any) -> Scene:
    """A scene, or a skip that names why the backend refuses the spec."""
    reasons = backend.unsupported(spec, device)
    if reasons:
        pytest.skip("; ".join(reasons))
    return Scene(backend, device, spec, lengths, **kwargs)


def check_step(scene: Scene, rows: list[tuple[int, int, int]]) -> None:
    """Cache what came before `rows`, then play them as one step and compare with float64."""
    past = [(sequence, 0, start) for sequence, start, _ in rows if start > 0]
    if past:
        scene.write(past)
    check_cached_step(scene, rows)


def check_cached_step(scene: Scene, rows: list[tuple[int, int, int]]) -> None:
    """The same, where the past is in the cache already."""
    out, lse = scene.step(rows)
    true_out, true_lse = scene.answer(rows)
    assert relative_error(out, true_out) < TOLERANCE[scene.spec.dtype]
    if lse is not None:
        assert relative_error(lse, true_lse) < TOLERANCE[scene.spec.dtype]


def test_it_declares_contract_name_and_graph_support(attention_backend: Backend) -> None:
    assert OLDEST_API <= attention_backend.api <= API
    assert load(attention_backend.name) is attention_backend
    assert isinstance(attention_backend.graph, GraphSupport)


@pytest.mark.parametrize(
    "change",
    [{"kv_dtype": "int3"}, {"kind": "encoder"}, {"kind": "mla", "kv_dtype": "int3"}],
    ids=["int3", "encoder", "latent int3"],
)
def test_what_it_cannot_do_is_refused_with_reasons(
    attention_backend: Backend, attention_device: DeviceInfo, change: dict[str, Any]
) -> None:
    reasons = attention_backend.unsupported(make_spec(**change), attention_device)
    assert isinstance(reasons, list)
    assert all(isinstance(reason, str) and reason for reason in reasons)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("block_size", [16, 32])
def test_its_layout_describes_the_tensor_that_is_allocated(
    attention_backend: Backend, attention_device: DeviceInfo, block_size: int, kind: str
) -> None:
    spec = KINDS[kind](block_size=block_size)
    scene = make_scene(attention_backend, attention_device, spec, [1])
    layout = attention_backend.kv_layout(spec, attention_device)
    kv = allocate_kv(layout, 7, attention_device)
    assert kv.shape[layout.block_axis] == 7
    assert kv.stride() == layout.strides_of(7)
    assert kv.nbytes == 7 * layout.block_bytes
    least = token_items(spec) * block_size * scene.kv.element_size()
    assert least <= layout.block_bytes < 2 * least


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(("q_heads", "kv_heads"), [(4, 4), (6, 2), (7, 1), (8, 2)])
def test_mixed_batches_match_float64_for_every_ratio_of_heads(
    attention_backend: Backend, attention_device: DeviceInfo, q_heads: int, kv_heads: int, dtype: str
) -> None:
    spec = make_spec(q_heads=q_heads, kv_heads=kv_heads, dtype=dtype)
    check_step(make_scene(attention_backend, attention_device, spec, MIXED_LENGTHS), MIXED)


@pytest.mark.parametrize("head_dim", [32, 64, 80, 128])
@pytest.mark.parametrize("block_size", [1, 16, 32])
def test_mixed_batches_match_float64_for_every_head_and_block_size(
    attention_backend: Backend, attention_device: DeviceInfo, head_dim: int, block_size: int
) -> None:
    spec = make_spec(head_dim=head_dim, block_size=block_size)
    check_step(make_scene(attention_backend, attention_device, spec, MIXED_LENGTHS), MIXED)


FEATURES: dict[str, dict[str, Any]] = {
    "window of 1": {"window": 1},
    "window of 7": {"window": 7},
    "window of a block": {"window": 16},
    "window beyond all": {"window": 500},
    "softcap": {"softcap": 5.0},
    "alibi": {"alibi": True},
    "sinks": {"sinks": True},
    "lse": {"need_lse": True},
    "lse with sinks": {"need_lse": True, "sinks": True},
    "all at once": {"window": 21, "softcap": 8.0, "alibi": True, "sinks": True, "need_lse": True},
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(("q_heads", "row", "value"), [(1, 40, 32), (6, 80, 64), (16, 576, 512)])
def test_mixed_batches_over_latent_rows_match_float64(
    attention_backend: Backend, attention_device: DeviceInfo, q_heads: int, row: int, value: int, dtype: str
) -> None:
    spec = make_latent_spec(q_heads=q_heads, head_dim=row, v_head_dim=value, dtype=dtype)
    check_step(make_scene(attention_backend, attention_device, spec, MIXED_LENGTHS), MIXED)


@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_feature_matches_float64(
    attention_backend: Backend, attention_device: DeviceInfo, feature: str, dtype: str
) -> None:
    spec = make_spec(dtype=dtype, **FEATURES[feature])
    check_step(make_scene(attention_backend, attention_device, spec, MIXED_LENGTHS), MIXED)


@pytest.mark.parametrize("feature", FEATURES)
def test_every_feature_over_latent_rows_matches_float64(
    attention_backend: Backend, attention_device: DeviceInfo, feature: str
) -> None:
    spec = make_latent_spec(**FEATURES[feature])
    check_step(make_scene(attention_backend, attention_device, spec, MIXED_LENGTHS), MIXED)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("kv_dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("feature", ["window of 7", "softcap"])
def test_a_narrow_cache_under_float32_queries_costs_only_its_rounding(
    attention_backend: Backend, attention_device: DeviceInfo, kv_dtype: str, feature: str, kind: str
) -> None:
    spec = KINDS[kind](kv_dtype=kv_dtype, **FEATURES[feature])
    check_step(make_scene(attention_backend, attention_device, spec, MIXED_LENGTHS), MIXED)


@pytest.mark.parametrize("seed", range(6))
def test_random_batches_match_float64(attention_backend: Backend, attention_device: DeviceInfo, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)

    def draw(least: int, most: int) -> int:
        return int(torch.randint(least, most + 1, (), generator=random))

    rows = []
    for sequence in range(draw(1, 24)):
        past = draw(0, 150)
        rows.append((sequence, past, past + (1 if draw(0, 2) else draw(2, 40))))
    kv_heads = draw(1, 3)
    spec = make_spec(
        q_heads=kv_heads * draw(1, 5),
        kv_heads=kv_heads,
        block_size=(8, 16, 32)[seed % 3],
        window=(0, 0, 33)[draw(0, 2)],
    )
    lengths = [end for _, _, end in rows]
    check_step(make_scene(attention_backend, attention_device, spec, lengths, seed=seed), rows)


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_without_padding_matches_float64(
    attention_backend: Backend, attention_device: DeviceInfo, kind: str
) -> None:
    scene = make_scene(attention_backend, attention_device, KINDS[kind](), MIXED_LENGTHS, padding=(0, 0))
    check_step(scene, MIXED)


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_comes_out_the_same_alone_and_among_others(
    attention_backend: Backend, attention_device: DeviceInfo, kind: str
) -> None:
    scene = make_scene(attention_backend, attention_device, KINDS[kind](), MIXED_LENGTHS)
    scene.write([(sequence, 0, start) for sequence, start, _ in MIXED if start])
    together, _ = scene.step(MIXED)
    alone = torch.cat([scene.step([row])[0] for row in MIXED])
    assert (together - alone).abs().max() < 1e-5


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunk", [1, 5, 16])
def test_a_prompt_in_chunks_comes_out_as_the_whole_prompt(
    attention_backend: Backend, attention_device: DeviceInfo, chunk: int, kind: str
) -> None:
    scene = make_scene(attention_backend, attention_device, KINDS[kind](), [50])
    pieces = [scene.step([(0, start, min(start + chunk, 50))])[0] for start in range(0, 50, chunk)]
    true, _ = scene.answer([(0, 0, 50)])
    assert relative_error(torch.cat(pieces), true) < TOLERANCE["float32"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("feature", ["window beyond all", "softcap"])
def test_nan_in_one_sequence_stays_in_its_rows(
    attention_backend: Backend, attention_device: DeviceInfo, feature: str, kind: str
) -> None:
    scene = make_scene(attention_backend, attention_device, KINDS[kind](**FEATURES[feature]), [30, 30, 28, 40, 12])
    scene.contents[1].k[3] = torch.nan
    scene.contents[3].v[0] = torch.nan
    scene.contents[4].q[11] = torch.nan
    rows = [(0, 29, 30), (1, 29, 30), (2, 27, 28), (3, 20, 40), (4, 11, 12)]
    scene.write([(sequence, 0, start) for sequence, start, _ in rows])
    out, _ = scene.step(rows)
    true, _ = scene.answer(rows)
    sound = [0, 2]
    assert relative_error(out[sound], true[sound]) < TOLERANCE["float32"]
    assert out[[1, 3, 23]].isnan().any(dim=-1).all()


@pytest.mark.parametrize("kind", KINDS)
def test_writing_touches_the_named_slots_and_no_other(
    attention_backend: Backend, attention_device: DeviceInfo, kind: str
) -> None:
    spec = KINDS[kind]()
    scene = make_scene(attention_backend, attention_device, spec, [20, 5])
    scene.write([(0, 3, 20), (1, 4, 5)])
    assert int((~scene.kv.isnan()).sum()) == (17 + 1) * token_items(spec)
    axis = attention_backend.kv_layout(spec, attention_device).block_axis
    others = torch.tensor([0, *scene.unused], device=scene.device)
    assert bool(scene.kv.index_select(axis, others).isnan().all())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("block_size", [1, 16])
def test_copied_blocks_serve_in_place_of_their_sources(
    attention_backend: Backend, attention_device: DeviceInfo, block_size: int, kind: str
) -> None:
    scene = make_scene(attention_backend, attention_device, KINDS[kind](block_size=block_size), [40, 33])
    check_step(scene, [(0, 39, 40), (1, 32, 33)])
    moved = scene.unused[:2]
    sources = [scene.tables[0][0], scene.tables[1][0]]
    copies = [(source, target, block_size) for source, target in zip(sources, moved, strict=True)]
    scene.backend.copy_tokens(scene.kv, torch.tensor(copies, device=scene.device))
    scene.tables[0][0], scene.tables[1][0] = moved
    check_cached_step(scene, [(0, 39, 40), (1, 32, 33)])


def test_copies_read_every_source_before_they_write(attention_backend: Backend, attention_device: DeviceInfo) -> None:
    scene = make_scene(attention_backend, attention_device, make_spec(), [40])
    check_step(scene, [(0, 39, 40)])
    first, second, _ = scene.tables[0]
    # The two blocks change places, and the first has a second taker.
    copies = [(first, second, 16), (second, first, 16), (first, scene.unused[0], 16)]
    scene.backend.copy_tokens(scene.kv, torch.tensor(copies, device=scene.device))
    scene.tables[0][:2] = [second, first]
    check_cached_step(scene, [(0, 39, 40)])
    scene.tables[0][0] = scene.unused[0]
    check_cached_step(scene, [(0, 39, 40)])


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_tokens_of_a_block_are_copied_and_nothing_behind_them(
    attention_backend: Backend, attention_device: DeviceInfo, kind: str
) -> None:
    spec = KINDS[kind]()
    scene = make_scene(attention_backend, attention_device, spec, [40, 23])
    check_step(scene, [(0, 39, 40), (1, 22, 23)])
    # The second sequence begins a block with 7 of its tokens; the first one's next block gets 1 and 16 of its own.
    source, other = scene.tables[1][1], scene.tables[0][1]
    copies = [(source, scene.unused[0], 7), (other, scene.unused[1], 1), (other, scene.unused[2], 16)]
    before = scene.kv.clone()
    scene.backend.copy_tokens(scene.kv, torch.tensor(copies, device=scene.device))
    changed = scene.kv.ne(before) & ~(scene.kv.isnan() & before.isnan())
    assert int(changed.sum()) == (7 + 1 + 16) * token_items(spec)
    axis = attention_backend.kv_layout(spec, attention_device).block_axis
    for _, target, tokens in copies:
        block = changed.select(axis, target)
        assert int(block.sum()) == tokens * token_items(spec)
    scene.tables[1][1] = scene.unused[0]
    check_cached_step(scene, [(1, 22, 23)])
    scene.tables[0][1] = scene.unused[2]
    check_cached_step(scene, [(0, 39, 40)])


def test_a_new_plan_forgets_the_last_one(attention_backend: Backend, attention_device: DeviceInfo) -> None:
    scene = make_scene(attention_backend, attention_device, make_spec(), MIXED_LENGTHS)
    check_step(scene, MIXED)
    check_step(scene, MIXED[4:] + MIXED[:2])
    check_step(scene, [(2, 36, 37)])
