"""Sends streamed requests to an OpenAI-compatible server at a given rate and width, and times what comes back.

`bench` calls it, and the comparison with other engines; it speaks to nothing but the server's HTTP port.

INVARIANT: at most `max_concurrency` requests are under way; the same seed sends the same prompts at the same times.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from asyncpage.cli.latency import Sample
from asyncpage.errors import AsyncpageError

# Common English words, each one token in most vocabularies when a space stands before it.
WORDS = tuple(
    re.findall(
        r"\w+",
        "the of and to in is that it was for on are as with his they at be this from have or by one had not but what "
        "all were when we there can an your which their said if do will each about how up out them then she many "
        "some so these would other into has more her two like him see time could no make than first been its who "
        "now people my made over did down only way find use may water long little very after words called just most",
    )
)

_MAX_EVENT_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Plan:
    """What to send. `request_rate` is requests a second, infinite for all at once; rates below arrive at random.

    `max_concurrency` None is no bound. `endpoint` is /v1/completions or /v1/chat/completions.
    """

    base_url: str
    endpoint: str
    model: str
    api_key: str
    num_prompts: int
    request_rate: float
    max_concurrency: int | None
    random_input_len: int
    random_output_len: int
    temperature: float
    seed: int


class LoadFailed(AsyncpageError):
    """The server cannot be measured at all."""


async def first_model(base_url: str, api_key: str) -> str:
    """The first model the server lists. Errors: `LoadFailed`."""
    try:
        async with (
            aiohttp.ClientSession(headers=_headers(api_key)) as session,
            session.get(base_url + "/v1/models") as response,
        ):
            if response.status != 200:
                raise LoadFailed(f"{base_url}/v1/models answered {response.status}; pass --model, or --api-key")
            return str((await response.json(content_type=None))["data"][0]["id"])
    except (aiohttp.ClientError, OSError) as error:
        raise LoadFailed(
            f"nothing answers at {base_url} ({_reason(error)}); start a server or pass --base-url"
        ) from None
    except (ValueError, LookupError, TypeError):
        raise LoadFailed(f"{base_url}/v1/models lists no model; pass --model") from None


async def drive(
    plan: Plan, now: Callable[[], float], progress: Callable[[int, int], None]
) -> tuple[list[Sample], float]:
    """Run the plan; returns the samples in sending order and the seconds from first send to last end."""
    return await send_all(plan, tuple(zip(_prompts(plan), _arrivals(plan), strict=True)), now, progress)


async def send_all(
    plan: Plan, prompts: Sequence[tuple[str, float]], now: Callable[[], float], progress: Callable[[int, int], None]
) -> tuple[list[Sample], float]:
    """The same for prompts of one's own, each with the seconds after the start at which it goes out, ascending.

    Of the plan what it says of prompts and their times does not count.
    """
    samples = [Sample() for _ in prompts]
    gate = asyncio.Semaphore(plan.max_concurrency or len(prompts))
    finished = 0

    async def send(session: aiohttp.ClientSession, sample: Sample, text: str) -> None:
        nonlocal finished
        async with gate:
            await _one(session, plan, text, sample, now)
        finished += 1
        progress(finished, len(prompts))

    # Without these limits aiohttp would queue requests itself and cut long answers off. Some servers end connections
    # that wait, just as the next request goes out.
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(headers=_headers(plan.api_key), connector=connector, timeout=timeout) as session:
        started = now()
        async with asyncio.TaskGroup() as group:
            for sample, (text, due_s) in zip(samples, prompts, strict=True):
                await asyncio.sleep(max(0.0, started + due_s - now()))
                group.create_task(send(session, sample, text))
        return samples, now() - started


def _prompts(plan: Plan) -> Iterator[str]:
    source = random.Random(f"prompts {plan.seed}")
    for _ in range(plan.num_prompts):
        yield " ".join(source.choices(WORDS, k=plan.random_input_len))


def _arrivals(plan: Plan) -> Iterator[float]:
    """Seconds after the start: a Poisson process of the given rate, or all zero."""
    source = random.Random(f"arrivals {plan.seed}")
    due_s = 0.0
    for _ in range(plan.num_prompts):
        yield due_s
        if plan.request_rate != float("inf"):
            due_s += source.expovariate(plan.request_rate)


def _headers(api_key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {api_key}"} if api_key else {}


def _body(plan: Plan, text: str) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": plan.model,
        "max_tokens": plan.random_output_len,
        "temperature": plan.temperature,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if plan.endpoint.endswith("/chat/completions"):
        return body | {"messages": [{"role": "user", "content": text}]}
    return body | {"prompt": text}


async def _one(session: aiohttp.ClientSession, plan: Plan, text: str, sample: Sample, now: Callable[[], float]) -> None:
    sample.sent = now()
    try:
        async with session.post(plan.base_url + plan.endpoint, json=_body(plan, text)) as response:
            if response.status != 200:
                sample.error = f"HTTP {response.status}: {_message(await response.text())[:200]}"
                return
            is_complete = False
            async for line in _lines(response.content):
                data = line.removeprefix(b"data:").strip() if line.startswith(b"data:") else b""
                if data == b"[DONE]":
                    is_complete = True
                    break
                if data:
                    _take(json.loads(data), sample, now())
            if not is_complete and not sample.error:
                sample.error = "the stream ended without [DONE]"
    except (aiohttp.ClientError, OSError, ValueError) as error:
        sample.error = f"{type(error).__name__}: {error}"
    finally:
        sample.ended = sample.arrivals[-1] if sample.arrivals else now()


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Lines of the stream; aiohttp's own iteration refuses lines longer than its buffer."""
    rest = b""
    async for piece in content.iter_any():
        *lines, rest = (rest + piece).split(b"\n")
        if len(rest) > _MAX_EVENT_BYTES:
            raise ValueError("an event of more than 4 MiB")
        for line in lines:
            yield line


def _reason(error: Exception) -> str:
    """Why a connection failed, in the system's words: the libraries' own name their internals beside it."""
    if isinstance(error, aiohttp.InvalidURL):
        return "that is no address; one looks like http://127.0.0.1:8000"
    if not isinstance(error, OSError) or error.errno is None:
        return str(error)
    # Below zero are the numbers of name look-ups, which come with their text.
    return os.strerror(error.errno) if error.errno > 0 else error.strerror or str(error)


def _message(body: str) -> str:
    """What a person wants to read of an answer that is an error."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return body


def _take(event: Any, sample: Sample, at: float) -> None:
    """Errors: `ValueError` when the event is not an object of the API."""
    if not isinstance(event, dict):
        raise ValueError(f"an event that is no object: {str(event)[:80]}")
    if event.get("error"):
        sample.error = str(event["error"])[:200]
    if usage := event.get("usage"):
        sample.prompt_tokens = int(usage.get("prompt_tokens") or 0)
        sample.output_tokens = int(usage.get("completion_tokens") or 0)
        sample.cached_tokens = int((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)
    for choice in event.get("choices") or ():
        delta = choice.get("delta") or {}
        # The opening chunk of a chat holds only the role, the closing one only the reason: neither is a token.
        if choice.get("text") or delta.get("content") or delta.get("reasoning_content"):
            sample.arrivals.append(at)
            if not event.get("usage"):
                sample.output_tokens = max(sample.output_tokens, len(sample.arrivals))
