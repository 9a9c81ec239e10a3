"""Training a draft head: what it learns from is what transformers computes of the same texts, what is trained is what
the engine runs, and it learns."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertModel, LlamaForCausalLM, MistralForCausalLM

from asyncpage.errors import UsageError
from asyncpage.executor.runner import load_runner
from asyncpage.executor.speculation.head_file import write_head
from asyncpage.executor.speculation.head_lessons import Lesson, batches
from asyncpage.executor.speculation.head_start import begin_head
from asyncpage.executor.speculation.head_training import HeadTraining
from asyncpage.executor.speculation.text_writer import Prompt, Text, TextWriter
from asyncpage.messages import Load
from tests.executor.near_end import GREEDY, Scheduler, request
from tests.executor.test_draft_head import WINDOW, Plain, config_for, random_tensors
from tests.executor.test_draft_model import CONTEXT, DRAFTS, SETTINGS, VOCABULARY, prompt, save

LONGEST = 40


@pytest.fixture(scope="module")
def great(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(save(tmp_path_factory.mktemp("great"), 3))


@pytest.fixture(scope="module")
def oracle(great: Path) -> LlamaForCausalLM:
    return LlamaForCausalLM.from_pretrained(great, dtype=torch.float32).eval()


def write(great: Path, prompts: Iterator[Prompt], rows: int) -> list[Text]:
    writer = TextWriter({**SETTINGS, "model_path": str(great)}, rows, LONGEST)
    try:
        return list(writer.write(prompts))
    finally:
        writer.close()


def prompts(count: int, most: int = 24, heat: float = 0.0) -> Iterator[Prompt]:
    for number in range(count):
        ids = torch.randint(0, VOCABULARY, (2 + number % 7,), generator=torch.Generator().manual_seed(number))
        yield Prompt(tuple(ids.tolist()), most, heat, (7,), number)


def test_texts_are_the_models_greedy_ones_with_its_states(great: Path, oracle: LlamaForCausalLM) -> None:
    texts = write(great, prompts(11), rows=3)
    assert len(texts) == 11
    for text in texts:
        begun = torch.tensor([text.prompt.tokens])
        expected = oracle.generate(begun, max_new_tokens=24, do_sample=False, eos_token_id=7, pad_token_id=0)
        assert text.tokens.tolist() == expected[0].tolist()
        states = oracle.model(expected).last_hidden_state[0, :-1]
        torch.testing.assert_close(text.states.float(), states, atol=4e-3, rtol=2e-3)
        assert text.has_ended == (text.tokens[-1] == 7)


def test_when_time_is_up_texts_come_as_far_as_they_are(great: Path) -> None:
    steps = 0

    def has_time() -> bool:
        nonlocal steps
        steps += 1
        return steps < 9

    writer = TextWriter({**SETTINGS, "model_path": str(great)}, 3, LONGEST)
    cut = list(writer.write(prompts(100), has_time))
    whole = list(writer.write(prompts(3)))
    writer.close()
    begun = [text for text in cut if text.prompt.seed < 3]
    assert [len(text.tokens) - len(text.prompt.tokens) for text in begun] == [9, 9, 9]
    for text, other in zip(begun, sorted(whole, key=lambda text: text.prompt.seed), strict=True):
        assert text.tokens.tolist() == other.tokens[: len(text.tokens)].tolist()


def lesson(length: int, begin: int, answer: int) -> Lesson:
    return Lesson(torch.arange(length) + 100, torch.arange(length - 1)[:, None].half() + 0.5, begin, answer)


def test_a_batch_shows_each_place_its_token_and_the_state_before_it() -> None:
    given = [lesson(20, 9, 12), lesson(9, 1, 1), lesson(15, 2, 2)]
    made = list(batches(given, 30, 0.25, torch.Generator().manual_seed(1)))
    assert sorted(len(batch.tokens) for batch in made) == [1, 2]
    for batch in made:
        is_shown = batch.tokens > 0
        assert torch.equal(batch.following[is_shown], batch.tokens[is_shown] + 1)
        assert torch.equal(batch.before[is_shown][:, 0] + 100.5, batch.tokens[is_shown].float())
        assert torch.equal(batch.states[is_shown] - 1, batch.before[is_shown])
        assert not batch.weights[~is_shown].any()
    weights = {int(follows): float(weight) for batch in made if len(batch.tokens) == 1
               for follows, weight in zip(batch.following[0], batch.weights[0], strict=True)}  # fmt: skip
    assert {place: weight for place, weight in weights.items() if place < 114} == {
        **dict.fromkeys((106, 107, 108), 0.0), **dict.fromkeys((109, 110, 111), 0.25), 112: 1.0, 113: 1.0
    }  # fmt: skip


def test_what_is_trained_is_what_a_plain_computation_makes_of_it(
    great: Path, oracle: LlamaForCausalLM, tmp_path: Path
) -> None:
    """Each place of each unrolled step, as the end of a chain of guesses of its own."""
    config = config_for(great)
    tensors = random_tensors(config)
    write_head(tmp_path, config, tensors)
    plain, training = Plain(great, tmp_path), HeadTraining(config, tensors, oracle.model.embed_tokens)
    tokens = prompt(2 * WINDOW)
    with torch.inference_mode():
        true = oracle.model(torch.tensor([tokens])).last_hidden_state[0]
        before = torch.cat((torch.zeros(1, true.shape[1]), true[:-1]))
        unrolled = training.predict(torch.tensor([tokens]), before[None], 4)
        for begin in range(1, len(tokens) - 4):
            states = before[: begin + 1]
            for step in range(4):
                predicted = plain.predict(tokens[: begin + 1 + step], states)[-1:]
                torch.testing.assert_close(unrolled[step][0, begin + step], predicted[0], atol=1e-4, rtol=1e-4)
                states = torch.cat((states, predicted))


def rms_normed(rows: np.ndarray, eps: float) -> np.ndarray:
    return rows / np.sqrt((rows**2).mean(-1, keepdims=True) + eps)


def test_training_begins_with_the_linear_map_that_least_squares_have(great: Path, oracle: LlamaForCausalLM) -> None:
    texts = write(great, prompts(48), rows=16)
    lessons = [Lesson(torch.from_numpy(one.tokens).long(), one.states, 1, len(one.prompt.tokens)) for one in texts]
    start = begin_head(great, [one.tokens for one in lessons], draft_vocab=150, window=16)
    training = HeadTraining(start.config, start.tensors, start.embed)
    training.begin(lessons, 400)
    states = [one.states.double().numpy() for one in lessons]
    rows, eps = oracle.model.embed_tokens.weight.detach().double().numpy(), start.config["rms_norm_eps"]
    tokens = np.concatenate([one.tokens[1:-1].numpy() for one in lessons])
    before, then = np.concatenate([own[:-1] for own in states]), np.concatenate([own[1:] for own in states])
    given = np.concatenate((rms_normed(rows[tokens], eps), rms_normed(before, eps)), 1)
    size = np.sqrt((then**2).mean(0))
    ridge = np.sqrt(0.003 * (given**2).sum(0).mean()) * np.eye(given.shape[1])
    wanted = np.concatenate((then / size, np.zeros((len(ridge), then.shape[1]))))
    solved, *_ = np.linalg.lstsq(np.concatenate((given, ridge)), wanted)
    np.testing.assert_allclose(training.tensors["norm.weight"].numpy(), size, rtol=1e-4)
    np.testing.assert_allclose(training.tensors["join.weight"].numpy(), solved.T, atol=2e-3)
    for text, own in zip(lessons[:4], states[:4], strict=True):  # the rest of the head adds nothing yet
        token = rms_normed(rows[text.tokens[1:2].numpy()], eps)
        joined = np.concatenate((token, rms_normed(own[:1], eps)), 1) @ solved
        predicted = training.predict(text.tokens[None, 1:2], text.states[None, :1].float(), 1)[0][0]
        np.testing.assert_allclose(predicted.detach().numpy(), rms_normed(joined, eps) * size, atol=1e-2)


def test_a_head_learns_what_it_is_taught_and_the_engine_accepts_its_drafts(great: Path, tmp_path: Path) -> None:
    """Texts of random weights have nothing in common that others could be guessed from: these are told again."""
    torch.manual_seed(2)
    texts = write(great, prompts(48), rows=16)
    lessons = [Lesson(torch.from_numpy(one.tokens).long(), one.states, 1, len(one.prompt.tokens)) for one in texts]
    start = begin_head(great, [one.tokens for one in lessons], draft_vocab=150, window=16)
    training = HeadTraining(start.config, start.tensors, start.embed)
    untrained = training.acceptance(lessons, 3, 400)
    write_head(tmp_path / "untrained", start.config, training.tensors)
    training.begin(lessons, 400)
    draws, losses = torch.Generator().manual_seed(0), []
    for turn in range(120):
        losses += [training.learn(batch, 3, turn / 120) for batch in batches(lessons, 400, 0.2, draws)]
    assert sum(losses[-4:]) < 0.8 * sum(losses[:4])
    trained = training.acceptance(lessons, 3, 400)
    assert all(after > before + 0.1 for after, before in zip(trained, untrained, strict=True))
    assert trained == sorted(trained, reverse=True)
    write_head(tmp_path / "trained", start.config, training.tensors)
    steps = {name: steps_with(great, tmp_path / name) for name in ("untrained", "trained")}
    assert steps["trained"] < steps["untrained"]


def steps_with(great: Path, head: Path) -> int:
    speculation = {"speculation": "head", "draft_head_path": str(head), "most_drafts": DRAFTS, "ngram_lengths": (0, 8)}
    executor = load_runner(Load({**SETTINGS, "model_path": str(great), **speculation}))
    scheduler = Scheduler(executor)
    for row, one in enumerate(prompts(8)):
        scheduler.start(request(list(one.tokens), GREEDY, most=24), row)
    scheduler.run(24, drafts=DRAFTS)
    return scheduler.number


def test_a_head_for_a_model_of_other_parts_begins_with_what_fits(tmp_path: Path) -> None:
    """A window in each layer, more layers, and a window wider than the texts."""
    model = Path(save(tmp_path, 4, layers=3, sliding_window=64))
    start = begin_head(model, [torch.tensor([5, 5, 9])], draft_vocab=4, window=32)
    assert start.config["max_position_embeddings"] == CONTEXT
    assert start.tensors["draft_ids"].tolist() == [0, 1, 5, 9]
    last = MistralForCausalLM.from_pretrained(model)
    torch.testing.assert_close(start.tensors["head.weight"], last.lm_head.weight[[0, 1, 5, 9]])
    torch.testing.assert_close(
        start.tensors["model.layers.0.mlp.up_proj.weight"], last.model.layers[2].mlp.up_proj.weight
    )


def test_an_encoder_has_no_head(tmp_path: Path) -> None:
    config = BertConfig(vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
    BertModel(config).save_pretrained(tmp_path)
    with pytest.raises(UsageError, match="is an encoder"):
        begin_head(tmp_path, [torch.tensor([1])], 4, 8)
