"""`LLM`: the engine for scripts and notebooks, without asyncio in sight.

Its loop runs in a thread of its own, so it also works where a loop is running already, as in a notebook.

INVARIANT: a call returns all outputs, in the order of its prompts, or raises; whatever was still running is cancelled.
Nothing in the loop's thread refers to the `LLM`, so one that is dropped, or left open at exit, closes itself.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import weakref
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from asyncpage.config import EngineConfig
from asyncpage.core.sampling import SamplingParams
from asyncpage.engine import AsyncEngine
from asyncpage.errors import UsageError
from asyncpage.messages import ChatPrompt, Pooling, RequestOptions, TextPrompt, TokenPrompt
from asyncpage.outputs import Part, RequestOutput, gather
from asyncpage.progress import Progress
from asyncpage.prompts import PromptLike

_T = TypeVar("_T")
Message = Mapping[str, Any]


class LLM:
    """A model to call.

    `model`: a GGUF file, a folder, or "demo". Further settings are the fields of `EngineConfig`; the executor runs
    in a thread of this process unless `placement="process"`. Ctrl-C stops a call; the next one works.
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
        thread = threading.Thread(target=self._loop.run_forever, name="asyncpage", daemon=True)
        thread.start()
        try:
            self._engine = _await(AsyncEngine.start(self._config), self._loop)
        except BaseException:
            _end_loop(self._loop, thread)
            raise
        # A thread that computes while the interpreter ends would abort the process.
        self._end = weakref.finalize(self, _end, self._engine, self._loop, thread)

    def generate(
        self,
        prompts: PromptLike | Sequence[PromptLike],
        sampling: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        structured: Mapping[str, Any] | None = None,
        adapter: str | None = None,
        progress: bool = True,
    ) -> list[RequestOutput]:
        """Answers to one prompt (text or token ids) or to many, all in one batch as far as it has room.

        `sampling`: for all, or one a prompt; by default the model's own, up to its end token or the end of its
        context: give `max_tokens` to bound an answer. `structured`: what every answer must look like, one of
        `{"json": schema}`, `{"regex": pattern}`, `{"choice": texts}`, `{"grammar": gbnf}`, `{"json_object": True}`.
        `adapter`: the name of one that is loaded, to run the model with. `progress`: show a bar on standard error.
        Errors: `RequestError` for the first prompt that is refused or fails; the others are cancelled then.
        """
        return self._run(_as_list(prompts), sampling, structured, adapter, progress)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        structured: Mapping[str, Any] | None = None,
        adapter: str | None = None,
        progress: bool = True,
    ) -> list[RequestOutput]:
        """Answers to one conversation (mappings with `role` and `content`) or to many, as `generate` gives them."""
        is_one = bool(messages) and isinstance(messages[0], Mapping)
        conversations: Any = [messages] if is_one else messages
        prompts = [ChatPrompt(tuple(conversation)) for conversation in conversations]
        return self._run(prompts, sampling, structured, adapter, progress)

    def embed(
        self, prompts: PromptLike | Sequence[PromptLike], *, pooling: Pooling | None = None, progress: bool = True
    ) -> list[list[float]]:
        """A vector for one prompt (text or token ids) or for each of many, all in one batch as far as it has room.

        `pooling`: how; by default as the model's files or the setting of this name say. `progress` as for `generate`.
        Errors: as for `generate`.
        """
        wanted = _as_list(prompts)
        self._check_open()
        room = max(1, self._config.max_queue)
        options = RequestOptions(pooling=pooling)
        return self._run_all(
            [partial(self._engine.embed, prompt, options) for prompt in wanted], room, "embedding", progress
        )

    def load_adapter(self, name: str, folder: str) -> None:
        """Load a LoRA adapter that PEFT has saved, for calls to name; another under a name that is taken replaces it.

        It needs `enable_lora=True`; `lora=("NAME=FOLDER",)` loads some at once. Errors: `RequestError`.
        """
        self._check_open()
        _await(self._engine.adapters.load(name, folder), self._loop)

    def unload_adapter(self, name: str) -> None:
        """Forget an adapter. Errors: `RequestError` when it is not loaded."""
        self._check_open()

        async def unload() -> None:  # on the engine's own loop, as everything else of it
            self._engine.adapters.unload(name)

        _await(unload(), self._loop)

    def close(self) -> None:
        """Stop the engine and its thread. May be called twice."""
        self._end()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _run(
        self,
        prompts: Sequence[PromptLike],
        sampling: SamplingParams | Sequence[SamplingParams] | None,
        structured: Mapping[str, Any] | None,
        adapter: str | None,
        progress: bool,
    ) -> list[RequestOutput]:
        self._check_open()
        if sampling is None:
            sampling = SamplingParams(**self._engine.sampling_defaults)
        each = [sampling] * len(prompts) if isinstance(sampling, SamplingParams) else list(sampling)
        if len(each) != len(prompts):
            raise UsageError(
                f"there are {len(prompts)} prompts and {len(each)} sampling parameters; give one or as many"
            )
        room = max(1, self._config.max_queue // max(params.n for params in each) if each else 1)
        jobs = [partial(_answer, self._engine, *pair, structured, adapter) for pair in zip(prompts, each, strict=True)]
        return self._run_all(jobs, room, "generating", progress)

    def _run_all(
        self, jobs: Sequence[Callable[[], Coroutine[Any, Any, _T]]], room: int, what: str, progress: bool
    ) -> list[_T]:
        bar = Progress(what, "requests", sys.stderr, time.monotonic) if progress and jobs else None
        try:
            return _await(_results(jobs, room, bar), self._loop)
        finally:
            if bar is not None:
                bar.close()

    def _check_open(self) -> None:
        if not self._end.alive:
            raise UsageError("this LLM is closed; make a new one")


async def _answer(
    engine: AsyncEngine,
    prompt: PromptLike,
    params: SamplingParams,
    structured: Mapping[str, Any] | None,
    adapter: str | None,
) -> RequestOutput:
    answer = engine.generate(prompt, params, structured=structured, adapter=adapter)
    parts: list[Part] = [part async for part in answer]
    return gather(
        parts,
        params.n,
        has_logprobs=params.logprobs is not None,
        has_prompt_logprobs=params.prompt_logprobs is not None,
    )


async def _results(jobs: Sequence[Callable[[], Coroutine[Any, Any, _T]]], room: int, bar: Progress | None) -> list[_T]:
    """The results of all jobs, at most `room` of them under way at once."""
    gate = asyncio.Semaphore(room)
    done = 0

    def show() -> None:
        if bar is not None:
            bar.update(done, len(jobs))

    async def one(job: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        nonlocal done
        async with gate:
            result = await job()
        done += 1
        show()
        return result

    show()  # the first answer may take long
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(job)) for job in jobs]
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return [task.result() for task in tasks]


def _await(work: Coroutine[Any, Any, _T], loop: asyncio.AbstractEventLoop) -> _T:
    """The result of `work` on the loop of another thread; it is cancelled when this thread is interrupted."""
    future: Future[_T] = asyncio.run_coroutine_threadsafe(work, loop)
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


def _end(engine: AsyncEngine, loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    try:
        _await(engine.stop(), loop)
    finally:
        _end_loop(loop, thread)


def _end_loop(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    """Let what was cancelled clean up, then end the loop and its thread."""
    asyncio.run_coroutine_threadsafe(_others(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


async def _others() -> None:
    """Wait for every other task of this loop."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    await asyncio.gather(*others, return_exceptions=True)


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
