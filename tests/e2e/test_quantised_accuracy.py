"""How far the demo model on its own grid, with activations in eight bits, is from the same weights in float32."""

from __future__ import annotations

import inspect
from asyncio import base_events, queues, streams, tasks
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from asyncpage import LLM, SamplingParams
from asyncpage.backends.device import device_named
from asyncpage.executor.grids import open_grids
from asyncpage.models.model import Model
from asyncpage.models.registry import build_model
from asyncpage.text.tokenizer import load_tokenizer
from asyncpage.weights.checkpoint import open_checkpoint

ANSWER = 160
QUESTIONS = (
    "Name three primary colors and explain why the sky is blue.",
    "Write a short story about a lighthouse keeper who finds a letter in a bottle.",
    "What is the difference between weather and climate?",
    "Give me a recipe for pancakes, step by step.",
    "Explain how a bicycle stays upright.",
    "Write a Python function that returns the n-th Fibonacci number, and explain it.",
    "Summarise the causes of the French Revolution.",
    "What should I take on a three-day hike in the mountains?",
    "Write a polite letter to a landlord about a broken heater.",
    "Tell me what photosynthesis is, as if I were ten years old.",
)


def attend(layer: int, q_THD: torch.Tensor, k_TGD: torch.Tensor, v_TGD: torch.Tensor) -> torch.Tensor:
    """Of one sequence to itself."""
    q, k, v = (x.transpose(0, 1) for x in (q_THD, k_TGD, v_TGD))
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(0, 1)


def logits(model: Model, prompt: list[int], answer: list[int]) -> torch.Tensor:
    """Of every token of the answer, all before it given."""
    ids = torch.tensor([*prompt, *answer])
    return model.logits(model.forward(ids, torch.arange(len(ids)), attend)[len(prompt) - 1 : -1])


@pytest.mark.long
def test_the_demos_greedy_text_is_told_with_a_divergence_of_a_hundredth_and_the_same_first_choices(
    demo_model: Path,
) -> None:
    tokenizer = load_tokenizer(demo_model)
    sources = [tokenizer.encode(inspect.getsource(module)) for module in (base_events, queues, streams, tasks)]
    prompts = [sources[n % 4][n * 50 :][:24] for n in range(10)]
    turn = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
    prompts += [tokenizer.encode(turn.format(question)) for question in QUESTIONS]
    with LLM(str(demo_model), exact=True, max_model_len=512) as llm:
        sampling = SamplingParams(temperature=0.0, max_tokens=ANSWER, ignore_eos=True)
        answers = [list(output.outputs[0].token_ids) for output in llm.generate(prompts, sampling, progress=False)]
    checkpoint = open_checkpoint(demo_model)
    found = open_grids({}, checkpoint, device_named("cpu"), "float32")
    assert found is not None
    plain, packed = (
        build_model(
            checkpoint.config, lambda name: checkpoint.tensor(name, torch.float32), torch.float32, "cpu", grids=grids
        )
        for grids in (None, found)
    )
    divergence, agreed, count = 0.0, 0, 0
    with torch.inference_mode():
        for prompt, answer in zip(prompts, answers, strict=True):
            wanted = functional.log_softmax(logits(plain, prompt, answer), dim=-1)
            told = functional.log_softmax(logits(packed, prompt, answer), dim=-1)
            divergence += float(functional.kl_div(told, wanted, reduction="sum", log_target=True))
            agreed += int((wanted.argmax(dim=-1) == told.argmax(dim=-1)).sum())
            count += len(answer)
    print(f"{count} tokens: mean divergence {divergence / count:.4f}, same first choice {agreed / count:.4f}")
    assert count >= 3000
    assert divergence / count <= 0.01
    assert agreed / count >= 0.97
