"""When weights stay on the grid of their file, by the runner that loads them, and who computes the same on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType, quants

from asyncpage.backends.device import device_named
from asyncpage.errors import UsageError
from asyncpage.executor import grids
from asyncpage.executor.model_runner import ModelRunner
from asyncpage.executor.runner import load_runner
from asyncpage.executor.speculation.head_file import write_head
from asyncpage.kernels import native
from asyncpage.kernels.loaded import open_library
from asyncpage.kernels.native import Native
from asyncpage.kernels.quantised import table_bytes
from asyncpage.kernels.variant import choose_variant, read_processor
from asyncpage.messages import Load
from asyncpage.models.registry import build_model
from asyncpage.weights.checkpoint import open_checkpoint
from tests.executor.near_end import BLOCK_SIZE, Request, Scheduler, request
from tests.executor.test_draft_head import config_for, random_tensors
from tests.weights.blocky_models import BLOCKY
from tests.weights.gguf_conversion import Options, write_gguf

SETTINGS: dict[str, Any] = {
    "dtype": "float32", "kv_cache_dtype": "auto", "device": "cpu", "max_model_len": 96, "max_num_seqs": 4,
    "max_num_batched_tokens": 64, "block_size": BLOCK_SIZE, "kv_cache_bytes": None, "num_kv_blocks": 120,
    "attention_backend": "cpu", "grammar_backend": "builtin", "cpu_threads": 1, "seed": 0, "exact": False,
}  # fmt: skip
VARIANT = choose_variant(read_processor())
PROMPTS = ([5, 17, 40, 3, 88, 60, 12], [9, 9, 31], [77] * 20)


@pytest.fixture(scope="module")
def native_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("native")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder, options = tmp_path_factory.mktemp("models"), Options(dtype=GGMLQuantizationType.Q8_0)
    return {
        name: write_gguf(BLOCKY[name](), folder / f"{name}.gguf", options)
        for name in ("llama-tied", "mixtral", "deepseek2-lite")
    }


def runner_of(path: Path, native_folder: Path | None, **changes: Any) -> ModelRunner:
    where = {"model_path": str(path), "native_folder": None if native_folder is None else str(native_folder)}
    runner = load_runner(Load({**SETTINGS, **where, **changes}))
    assert isinstance(runner, ModelRunner)
    return runner


def answers(runner: ModelRunner, count: int = 8, **how: Any) -> list[list[int]]:
    """Greedy tokens of the prompts one after the other, so that no two share a step."""
    scheduler, found = Scheduler(runner), []
    for row, prompt in enumerate(PROMPTS):
        one: Request = scheduler.start(request(list(prompt), most=count), row)
        while not one.is_over:
            scheduler.step(**how)
        found.append(one.output)
        scheduler.stop(one)
    return found


def test_weights_stay_on_their_grid_and_take_what_is_told(files: dict[str, Path], native_folder: Path) -> None:
    told = runner_of(files["llama-tied"], native_folder).handshake
    assert VARIANT is not None
    assert (told.held_as, told.native, told.lack, told.stored_as) == (("Q8_0",), VARIANT.name, "", ("GGUF Q8_0",))
    # 96 wide, 6 heads and 2 for keys of 16, 64 inside, two layers, 97 tokens, whose table is the head, too.
    shapes = [(96 + 2 * 32, 96), (96, 96), (128, 96), (96, 64)] * 2 + [(97, 96)]
    tables = sum(table_bytes("Q8_0", *shape, VARIANT.lanes) for shape in shapes)
    assert told.weight_bytes == tables + 4 * 5 * 96


@pytest.mark.parametrize(
    "changes",
    [{"exact": True}, {"weights_dtype": "float32"}, {"weights_dtype": "bfloat16"}, {"dtype": "bfloat16"}],
    ids=str,
)
def test_who_asks_for_a_type_gets_it(files: dict[str, Path], tmp_path: Path, changes: dict[str, Any]) -> None:
    told = runner_of(files["llama-tied"], tmp_path / "native", **changes).handshake
    assert (told.held_as, told.lack) == ((), "")


def test_without_native_code_the_answers_are_those_of_exact_and_it_is_told_why(
    files: dict[str, Path], native_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = files["llama-tied"]
    exact = runner_of(path, native_folder, exact=True)
    without = runner_of(path, None)
    assert without.handshake.lack == "there is no folder to build it in"
    assert without.handshake.fingerprint == exact.handshake.fingerprint
    assert without.handshake.fingerprint != runner_of(path, native_folder).handshake.fingerprint
    assert answers(without) == answers(exact)
    (tmp_path / "a file").write_text("")
    assert "cannot be written" in runner_of(path, tmp_path / "a file").handshake.lack
    (tmp_path / "code.so").write_bytes(b"no library")
    monkeypatch.setattr(grids.native, "build", lambda folder: Native("built", "", tmp_path / "code.so", VARIANT))
    told = runner_of(path, native_folder).handshake
    assert told.held_as == ()
    assert told.lack.startswith(f"{tmp_path / 'code.so'} does not load: ")


def test_a_row_whose_logits_nobody_asks_for_ends_nothing_on_several_threads(
    files: dict[str, Path], native_folder: Path
) -> None:
    """A chunk of a prompt that goes on samples nothing: the head gets no rows."""
    one, more = (runner_of(files["llama-tied"], native_folder, cpu_threads=threads) for threads in (1, 3))
    assert answers(one, chunk=3) == answers(more, chunk=3)


@pytest.mark.parametrize("name", ["llama-tied", "mixtral", "deepseek2-lite"])
def test_all_but_attention_is_the_same_to_the_bit_in_any_batch_and_on_any_number_of_threads(
    files: dict[str, Path], native_folder: Path, name: str
) -> None:
    """A router's matrix is on no grid, nor are those that latent attention has for each head."""

    def attend(layer: int, q_THD: torch.Tensor, k_TGD: torch.Tensor, v_TGD: torch.Tensor) -> torch.Tensor:
        return q_THD[..., : v_TGD.shape[-1]] * 0.5  # of a row alone

    checkpoint = open_checkpoint(files[name])
    ids, whole = torch.arange(70), []
    for threads in (1, 3):
        open_library(native_folder, threads)
        found = grids.open_grids({}, checkpoint, device_named("cpu"), "float32")
        assert found is not None
        model = build_model(
            checkpoint.config,
            lambda tensor: checkpoint.tensor(tensor, torch.float32),
            torch.float32,
            "cpu",
            grids=found,
        )
        with torch.inference_mode():
            whole.append(model.logits(model.forward(ids, ids, attend)))
            for count in (1, 2, 3, 5, 8, 33):
                part = model.logits(model.forward(ids[:count], ids[:count], attend))
                assert torch.equal(part, whole[0][:count])
    assert torch.equal(*whole)
    checkpoint.close()


def test_a_draft_model_is_on_its_grid_too_and_changes_no_answer(files: dict[str, Path], native_folder: Path) -> None:
    path = files["llama-tied"]
    drafted = runner_of(
        path, native_folder, speculation="draft", draft_model_path=str(path), most_drafts=4, num_kv_blocks=240
    )
    assert drafted.handshake.held_as == ("Q8_0",)
    exact = runner_of(path, native_folder, exact=True, speculation="draft", draft_model_path=str(path), most_drafts=4)
    plain = runner_of(path, native_folder)
    assert len({one.handshake.fingerprint for one in (drafted, exact, plain)}) == 3
    assert answers(drafted, drafts=4) == answers(plain)


def test_a_head_drafts_from_states_and_rows_of_a_table_on_its_grid_and_changes_no_answer(
    files: dict[str, Path], native_folder: Path, tmp_path: Path
) -> None:
    path = files["llama-tied"]
    BLOCKY["llama-tied"]().save_pretrained(tmp_path / "model")
    checkpoint = open_checkpoint(path)
    config = config_for(tmp_path / "model", trained_for=checkpoint.fingerprint, draft_vocab_size=60)
    checkpoint.close()
    (tmp_path / "head").mkdir()
    write_head(tmp_path / "head", config, random_tensors(config))
    more = {"speculation": "head", "draft_head_path": str(tmp_path / "head"), "most_drafts": 4, "ngram_lengths": (0, 8)}
    drafted = runner_of(path, native_folder, **more)
    assert drafted.handshake.held_as == ("Q8_0",)
    assert answers(drafted, drafts=4) == answers(runner_of(path, native_folder))


def test_experts_of_other_ranks_are_on_their_grid_too(files: dict[str, Path], native_folder: Path) -> None:
    alone = runner_of(files["mixtral"], native_folder)
    assert alone.handshake.held_as == ("Q8_0",)
    expected = answers(alone)
    spread = runner_of(files["mixtral"], native_folder, expert_parallel_size=2)
    assert answers(spread) == expected
    spread.close()
    assert native.look(native_folder).state == "built"


def test_room_for_adapters_changes_no_answer_without_one(files: dict[str, Path], native_folder: Path) -> None:
    path = files["llama-tied"]
    adapted = runner_of(path, native_folder, max_loras=2, max_cpu_loras=2, max_lora_rank=8)
    assert adapted.handshake.held_as == ("Q8_0",)
    assert answers(adapted) == answers(runner_of(path, native_folder))


def on_grid(model: torch.nn.Module, kind: GGMLQuantizationType) -> None:
    """Move weights to where a grid has them; tables with a row for each token to where one of 8 bits does."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() > 1 and weight.shape[-1] % 32 == 0:
                own = GGMLQuantizationType.Q8_0 if "embed" in name or "lm_head" in name else kind
                flat = quants.quantize(weight.reshape(-1, weight.shape[-1]).float().numpy() * 0.25, own)
                weight.copy_(torch.from_numpy(quants.dequantize(flat, own)).view_as(weight))


def states(runner: ModelRunner) -> torch.Tensor:
    ids = torch.arange(40)
    with torch.inference_mode():
        return runner._model.forward(ids, ids, beside_itself)


def beside_itself(layer: int, q_THD: torch.Tensor, k_TGD: torch.Tensor, v_TGD: torch.Tensor) -> torch.Tensor:
    return q_THD * 0.5  # of a row alone


def test_weights_of_a_folder_are_put_on_the_grid_that_a_file_has_them_on(native_folder: Path, tmp_path: Path) -> None:
    model = BLOCKY["mixtral"]()
    on_grid(model, GGMLQuantizationType.Q8_0)
    model.save_pretrained(tmp_path / "model")
    write_gguf(model, tmp_path / "model.gguf", Options(dtype=GGMLQuantizationType.Q8_0))
    file = runner_of(tmp_path / "model.gguf", native_folder, attention_backend="cpu")
    made = runner_of(tmp_path / "model", native_folder, quantization="int8", attention_backend="cpu")
    assert file.handshake.held_as == made.handshake.held_as == ("Q8_0",)
    assert file.handshake.weight_bytes == made.handshake.weight_bytes
    for parts in (file, made):
        parts.watch(lambda name, part: part)  # part by part, with attention that is given
    assert torch.equal(states(file), states(made))


def test_four_bits_are_those_of_their_grid(native_folder: Path, tmp_path: Path) -> None:
    """Of weights that lie on it before, so that what differs from float32 is what rounds activations."""
    model = BLOCKY["llama-tied"]()
    on_grid(model, GGMLQuantizationType.Q4_1)
    model.save_pretrained(tmp_path / "model")
    exact = runner_of(tmp_path / "model", native_folder)
    made = runner_of(tmp_path / "model", native_folder, quantization="int4")
    assert (exact.handshake.held_as, made.handshake.held_as) == ((), ("Q4_1", "Q8_0"))
    assert made.handshake.weight_bytes < exact.handshake.weight_bytes * 0.35
    assert made.handshake.fingerprint != exact.handshake.fingerprint
    for parts in (exact, made):
        parts.watch(lambda name, part: part)
    wanted = states(exact)
    assert torch.linalg.norm(states(made) - wanted) < 0.05 * torch.linalg.norm(wanted)


def test_to_quantise_without_native_code_is_refused(files: dict[str, Path]) -> None:
    with pytest.raises(UsageError, match="--quantization needs native code, and there is none: there is no folder"):
        runner_of(files["mixtral"], None, quantization="int8")
