"""`LLM`: inside a running loop, interrupted, and left open."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from asyncpage import LLM
from asyncpage.errors import UsageError
from tests.e2e.oracle import Oracle, greedy

LONG = "SamplingParams(max_tokens=200, ignore_eos=True)"

# Registered before anything else, so it is asked last: which threads are left when the interpreter ends?
THREADS_AT_EXIT = """
import atexit, threading
atexit.register(lambda: print("left:", sorted(thread.name for thread in threading.enumerate())))
"""

# The first part of an answer interrupts the main thread, as Ctrl-C does.
INTERRUPTED = """
import signal, sys
from asyncpage import LLM, SamplingParams
llm = LLM(sys.argv[1], cpu_threads=1)
original = llm._engine.generate
async def interrupting(*arguments, **named):
    async for part in original(*arguments, **named):
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        yield part
llm._engine.generate = interrupting
"""


def run(code: str, model: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", THREADS_AT_EXIT + code, str(model)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


async def test_it_works_where_a_loop_is_running_as_in_a_notebook(tiny_model: Path, tiny_oracle: Oracle) -> None:
    with LLM(str(tiny_model), cpu_threads=1) as llm:
        prompts = [[11, 12, 13, 14], [21, 22, 23]]
        outputs = llm.generate(prompts, greedy(8), progress=False)
    for prompt, output in zip(prompts, outputs, strict=True):
        assert len(output.outputs[0].token_ids) == 8
        tiny_oracle.check(prompt, output.outputs[0].token_ids)
    with pytest.raises(UsageError, match="this LLM is closed; make a new one"):
        llm.generate([1, 2])
    llm.close()  # a second time is no error


def test_an_interrupt_ends_the_call_and_the_next_one_works(tiny_model: Path) -> None:
    code = f"""
try:
    llm.generate(["a", "b"], {LONG})
except KeyboardInterrupt:
    print("interrupted")
llm._engine.generate = original
print(len(llm.generate("a", SamplingParams(max_tokens=3, ignore_eos=True))[0].outputs[0].token_ids))
"""
    done = run(INTERRUPTED + code, tiny_model)
    assert done.stdout == "interrupted\n3\nleft: ['MainThread']\n", done.stderr
    assert done.returncode == 0


def test_one_that_is_left_open_while_it_computes_ends_with_the_program(tiny_model: Path) -> None:
    done = run(INTERRUPTED + f"llm.generate('a', {LONG})", tiny_model)
    assert done.stdout == "left: ['MainThread']\n"
    assert done.stderr.strip().endswith("KeyboardInterrupt")
    assert done.returncode == -signal.SIGINT


def test_one_that_is_dropped_gives_its_threads_back(tiny_model: Path) -> None:
    code = """
import sys
from asyncpage import LLM
llm = LLM(sys.argv[1], cpu_threads=1)
del llm
print({"asyncpage", "executor"} & {thread.name for thread in threading.enumerate()})
"""
    assert run(code, tiny_model).stdout.startswith("set()\n")
