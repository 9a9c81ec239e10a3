"""The command as a whole: exit codes, one-line errors, and how little it loads."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import asyncpage
from asyncpage.cli.main import COMMANDS, main

HEAVY = ("torch", "aiohttp", "structlog", "numpy", "jinja2", "msgpack", "regex", "prometheus_client")


def test_the_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"asyncpage {asyncpage.__version__}\n"


def test_no_command_shows_the_overview(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    out = capsys.readouterr().out
    assert all(command.name in out and command.summary in out for command in COMMANDS)


@pytest.mark.parametrize("command", [command.name for command in COMMANDS])
def test_every_commands_help_ends_with_examples_of_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    examples = capsys.readouterr().out.split("examples:\n")[1]
    assert f"asyncpage {command}" in examples


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["srve"], "there is no command 'srve', did you mean serve?"),
        (["serve", "--max-num-seq", "4"], "serve does not know --max-num-seq, did you mean --max-num-seqs?"),
        (["serve", "--gpu-memory-utilization=0.9"], "sized by --kv-cache-bytes"),
        (["generate", ""], "a prompt is empty; type asyncpage generate"),
        (["serve", "--max-num-seqs", "x"], "--max-num-seqs takes a whole number of requests"),
        (["serve", "--max-num-seqs", "0"], "--max-num-seqs must be at least 1"),
        (["serve", "--port"], "argument --port: expected one argument"),
        (["serve", "--config", "/none.toml"], "/none.toml cannot be read"),
        (["serve", "/no/such/model.gguf"], "/no/such/model.gguf"),
        (["generate", "--temperature", "9", "x"], "--temperature: temperature must be between 0.0 and 2.0"),
        (["generate", "--max-tokens", "x", "y"], "invalid int value: 'x'"),
        (["generate", "--model", "/no/such/model.gguf", "x"], "/no/such/model.gguf"),
        (["chat", "/no/such/model.gguf"], "/no/such/model.gguf"),
        (["fetch", "llama"], "'llama' cannot be fetched; type 'demo', or ORG/NAME"),
        (["backends", "--as", "abacus"], "no such device: 'abacus'"),
        (["bench", "serve", "--num-prompts", "0"], "--num-prompts must be at least 1"),
        (["bench", "serve", "--request-rate", "nan"], "--request-rate must be greater than 0"),
        (["bench", "dance"], "invalid choice: 'dance'"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_exit_code_2(
    argv: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 2
    streams = capsys.readouterr()
    assert streams.out == ""
    assert said in streams.err
    assert streams.err.startswith("asyncpage: ")
    assert streams.err.count("\n") == 1


def test_a_server_that_is_not_there_is_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "serve", "--base-url", "http://127.0.0.1:1"]) == 1
    assert "nothing answers at http://127.0.0.1:1 (Connection refused); start a server" in capsys.readouterr().err


def test_printing_the_configuration_starts_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "/no/such/model.gguf", "--print-config", "--api-key", "hunter2"]) == 0
    out = capsys.readouterr().out
    assert 'model = "/no/such/model.gguf"' in out
    assert "hunter2" not in out


def test_a_printed_configuration_that_is_saved_holds_no_key_to_guess(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "--print-config", "--api-key", "hunter2", "--api-key", "hunter3"]) == 0
    saved = tmp_path / "saved.toml"
    saved.write_text(capsys.readouterr().out, encoding="utf-8")
    assert "# api_key is not shown (2 given)" in saved.read_text(encoding="utf-8")
    assert main(["serve", "--print-config", "--config", str(saved)]) == 0
    assert "api_key = []" in capsys.readouterr().out


def test_where_no_backend_would_be_chosen_the_explanation_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["backends", "--explain", "--as", "sm90"]) == 0
    assert "auto finds none" in capsys.readouterr().out
    assert main(["backends", "--explain", "--as", "cpu"]) == 0
    assert "auto finds none" not in capsys.readouterr().out


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys\nfrom asyncpage.cli.main import main\n"
        "try:\n    main(['serve', '--help'])\nexcept SystemExit:\n    pass\n"
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.splitlines()[-1] == "[]"


def test_the_package_runs_as_a_module() -> None:
    told = subprocess.run(
        [sys.executable, "-m", "asyncpage", "--version"], capture_output=True, text=True, check=True
    ).stdout
    assert told == f"asyncpage {asyncpage.__version__}\n"


def test_backends_are_listed_with_the_one_that_would_be_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["backends", "--as", "cpu"]) == 0
    assert "* native" in capsys.readouterr().out.splitlines()
    assert main(["backends", "--as", "cpu", "--json"]) == 0
    verdicts = json.loads(capsys.readouterr().out)
    assert [verdict["name"] for verdict in verdicts if verdict["is_chosen"]] == ["native"]


def test_backends_explain_why_none_would_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["backends", "--explain", "--as", "sm90"]) == 0
    out = capsys.readouterr().out
    assert "on cuda (sm90)" in out
    assert "  cpu         no: " in out


def test_fetching_what_is_there_prints_its_path_and_nothing_else(
    capsys: pytest.CaptureFixture[str], demo_model: object
) -> None:
    assert main(["fetch", "demo"]) == 0
    streams = capsys.readouterr()
    assert (streams.out, streams.err) == (f"{demo_model}\n", "")


def test_the_doctor_reports_every_dependency_of_the_core(
    capsys: pytest.CaptureFixture[str], demo_model: object
) -> None:
    code = main(["doctor", "--json"])
    findings = {finding["name"]: finding for finding in json.loads(capsys.readouterr().out)}
    assert code == 0
    assert {
        "python",
        "aiohttp",
        "numpy",
        "regex",
        "torch",
        "memory",
        "cores",
        "demo model",
        "hub's cache",
    } <= findings.keys()
    assert all(finding["hint"] for finding in findings.values() if finding["state"] == "missing")
    # 134,515,008 parameters, as the model's card counts them.
    assert findings["model family"]["found"] == "Llama"
    assert findings["weights"]["found"] == (
        "stored as GGUF Q4_1 and GGUF Q8_0, Q4_1 and Q8_0 held as they are on a CPU: 0.1 GiB; "
        "with --exact dequantised: 0.5 GiB as float32, 0.3 GiB as bfloat16 or float16"
    )


def test_the_doctor_says_why_there_is_no_native_code(
    capsys: pytest.CaptureFixture[str], demo_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "/nowhere/c++")
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "none, so quantised weights are dequantised: CXX names '/nowhere/c++', which is not there" in out
    assert "stored as GGUF Q4_1 and GGUF Q8_0, dequantised: 0.5 GiB as float32" in out


def test_the_doctor_says_through_what_a_model_runs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    save_file({"norm.weight": np.ones(4, np.float32)}, tmp_path / "model.safetensors")
    config = {"model_type": "granite", "num_hidden_layers": 1, "hidden_size": 64, "num_attention_heads": 4}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert main(["doctor", "--model", str(tmp_path)]) == 0
    out, found = capsys.readouterr().out, f"runs through transformers {version('transformers')}"
    assert f"  model family       ok       {found}\n" in out
    assert f"  step               warning  not listed: this model {found}, whose operators are not told apart\n" in out


def test_the_doctor_says_what_is_wrong_with_a_model(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["doctor", "--model", str(tmp_path / "nothing")]) == 1
    assert "  model              missing  " in capsys.readouterr().out
    save_file({"norm.weight": np.ones(4, np.float32)}, tmp_path / "model.safetensors")
    settings = {"quant_method": "bitnet"}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "quantization_config": settings}))
    assert main(["doctor", "--model", str(tmp_path)]) == 1
    assert "method 'bitnet' is not supported" in capsys.readouterr().out
