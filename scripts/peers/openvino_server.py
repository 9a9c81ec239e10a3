"""OpenVINO GenAI's continuous batching behind the one route that `scripts/compare_peers` asks, streamed.

It has no server of its own. The script starts this with the interpreter of the environment that has the package.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import queue
import threading
from dataclasses import dataclass
from typing import Any

import openvino_genai
from aiohttp import web

CACHE_GB = 2
ROWS, STEP_TOKENS = 32, 256  # what it is fastest with on two cores


@dataclass(slots=True)
class Asked:
    """A request under way: its answer's tokens go into `tokens`, None behind the last."""

    ids: Any
    most: int
    tokens: asyncio.Queue[list[int] | None]


class Engine:
    """The pipeline, stepped by a thread of its own while there is work."""

    def __init__(self, model: str, threads: int, loop: asyncio.AbstractEventLoop) -> None:
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = CACHE_GB
        scheduler.max_num_batched_tokens = STEP_TOKENS
        scheduler.max_num_seqs = ROWS
        scheduler.enable_prefix_caching = True
        scheduler.dynamic_split_fuse = True
        self.pipeline = openvino_genai.ContinuousBatchingPipeline(
            model, scheduler_config=scheduler, device="CPU", properties={"INFERENCE_NUM_THREADS": threads}
        )
        self.tokenizer = self.pipeline.get_tokenizer()
        self.asked: queue.Queue[Asked] = queue.Queue()
        self._loop = loop
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        live: dict[int, tuple[Any, Asked]] = {}
        number = 0
        while True:
            while not live or not self.asked.empty():
                asked = self.asked.get()
                number += 1
                settings = openvino_genai.GenerationConfig()
                settings.max_new_tokens, settings.ignore_eos, settings.do_sample = asked.most, True, False
                live[number] = self.pipeline.add_request(number, asked.ids, settings), asked
            self.pipeline.step()
            for key, (handle, asked) in list(live.items()):
                while handle.can_read():
                    for output in handle.read().values():
                        self._tell(asked, list(output.generated_ids))
                if handle.get_status() != openvino_genai.GenerationStatus.RUNNING:
                    del live[key]
                    self._tell(asked, None)

    def _tell(self, asked: Asked, tokens: list[int] | None) -> None:
        self._loop.call_soon_threadsafe(asked.tokens.put_nowait, tokens)


async def answer(engine: Engine, request: web.Request) -> web.StreamResponse:
    body = await request.json()
    ids = engine.tokenizer.encode(body["prompt"], add_special_tokens=False).input_ids
    asked = Asked(ids, body["max_tokens"], asyncio.Queue())
    engine.asked.put(asked)
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    count = 0
    while (tokens := await asked.tokens.get()) is not None:
        if tokens:
            count += len(tokens)
            # A token may be no whole character; a client counts what has a text.
            text = engine.tokenizer.decode(tokens) or " "
            await send(response, {"choices": [{"index": 0, "text": text, "finish_reason": None}]})
    usage = {"prompt_tokens": ids.shape[1], "completion_tokens": count}
    await send(response, {"choices": [], "usage": usage})
    await response.write(b"data: [DONE]\n\n")
    return response


async def send(response: web.StreamResponse, event: dict[str, Any]) -> None:
    await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")


async def serve(model: str, port: int, threads: int) -> None:
    engine = Engine(model, threads, asyncio.get_running_loop())

    async def completions(request: web.Request) -> web.StreamResponse:
        return await answer(engine, request)

    app = web.Application()
    app.router.add_post("/v1/completions", completions)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    arguments = parser.parse_args()
    asyncio.run(serve(arguments.model, arguments.port, arguments.threads))


if __name__ == "__main__":
    main()
