"""`LLM`: the engine for scripts and notebooks, without asyncio in sight.

Its loop runs in a thread of its own, so it also works where a loop is running already, as in a notebook.

INVARIANT: a call returns all outputs, in the order of its prompts, or raises; whatever was still running is cancelled.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from asyncpage.config import EngineConfig
from asyncpage.core.sampling import SamplingParams
from asyncpage.engine import AsyncEngine, PromptLike
from asyncpage.errors import UsageError
from asyncpage.messages import ChatPrompt, TextPrompt, TokenPrompt
from asyncpage.outputs import Part, RequestOutput, gather
from asyncpage.progress import Progress

_T = TypeVar("_T")
Message = Mapping[str, Any]


class LLM:
    """A model to call.

    `model`: a GGUF file, a folder, or "demo". Further settings are the fields of `EngineConfig`; the executor runs
    in a thread of this process unless `placement="process"`.
    Errors: `UsageError`, `ModelError` or `ExecutorError` when it cannot load.

        with LLM() as llm:
            print(llm.generate("The sky is", SamplingParams(max_tokens=16))[0].text)
    """

    def __init__(self, model: str = "demo", **settings: Any) -> None:
        known = EngineConfig.__dataclass_fields__.keys()
        for name in settings:
            if name not in known:
                raise UsageError(f"LLM has no setting {name!r}; it takes {', '.join(sorted(known))}")
        self._config = EngineConfig(model=model, **{"placement": "inproc", **settings})
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="asyncpage", daemon=True)
        self._thread.start()
        self._is_open = True
        try:
            self._engine = self._wait(AsyncEngine.start(self._config))
        except BaseException:
            self._end_loop()
            raise

    def generate(
        self,
        prompts: PromptLike | Sequence[PromptLike],
        sampling: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool = True,
    ) -> list[RequestOutput]:
        """Answers to one prompt (text or token ids) or to many, all in one batch as far as it has room.

        `sampling`: for all, or one a prompt. `progress`: show a bar on standard error.
        Errors: `RequestError` for the first prompt that is refused or fails; the others are cancelled then.
        """
        return self._run(_as_list(prompts), sampling, progress)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool = True,
    ) -> list[RequestOutput]:
        """Answers to one conversation (mappings with `role` and `content`) or to many, as `generate` gives them."""
        is_one = bool(messages) and isinstance(messages[0], Mapping)
        conversations: Any = [messages] if is_one else messages
        return self._run([ChatPrompt(tuple(conversation)) for conversation in conversations], sampling, progress)

    def close(self) -> None:
        """Stop the engine and its thread. May be called twice."""
        if self._is_open:
            try:
                self._wait(self._engine.stop())
            finally:
                self._end_loop()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _run(
        self,
        prompts: Sequence[PromptLike],
        sampling: SamplingParams | Sequence[SamplingParams] | None,
        progress: bool,
    ) -> list[RequestOutput]:
        if sampling is None:
            sampling = SamplingParams(**self._engine.sampling_defaults)
        each = [sampling] * len(prompts) if isinstance(sampling, SamplingParams) else list(sampling)
        if len(each) != len(prompts):
            raise UsageError(
                f"there are {len(prompts)} prompts and {len(each)} sampling parameters; give one or as many"
            )
        bar = Progress("generating", "requests", sys.stderr, time.monotonic) if progress and prompts else None
        try:
            return self._wait(self._all(prompts, each, bar))
        finally:
            if bar is not None:
                bar.close()

    async def _all(
        self, prompts: Sequence[PromptLike], each: Sequence[SamplingParams], bar: Progress | None
    ) -> list[RequestOutput]:
        room = asyncio.Semaphore(max(1, self._config.max_queue // max(params.n for params in each) if each else 1))
        done = 0

        async def one(prompt: PromptLike, params: SamplingParams) -> RequestOutput:
            nonlocal done
            async with room:
                parts: list[Part] = [part async for part in self._engine.generate(prompt, params)]
            done += 1
            if bar is not None:
                bar.update(done, len(prompts))
            return gather(
                parts,
                params.n,
                has_logprobs=params.logprobs is not None,
                has_prompt_logprobs=params.prompt_logprobs is not None,
            )

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(prompt, params)) for prompt, params in zip(prompts, each, strict=True)]
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None
        return [task.result() for task in tasks]

    def _wait(self, work: Coroutine[Any, Any, _T]) -> _T:
        if not self._is_open:
            work.close()
            raise UsageError("this LLM is closed; make a new one")
        future: Future[_T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def _end_loop(self) -> None:
        self._is_open = False
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def _as_list(prompts: PromptLike | Sequence[PromptLike]) -> list[PromptLike]:
    """One prompt is a text, a sequence of ids or a `Prompt`; anything else is a sequence of prompts."""
    match prompts:
        case str() | TextPrompt() | TokenPrompt() | ChatPrompt():
            return [prompts]
        case [int(), *_]:
            ids: Any = prompts
            return [ids]
        case _:
            many: Any = prompts
            return list(many)
