"""The way of every generation call, streamed or not: validate, submit, await the engine, answer, log.

The routes that generate call `generate` with their dialect: how they read a call and word its answer.

INVARIANT: headers go out only after the engine accepted every choice, so a refusal is a real status; and whatever
ends the handler, no request of it stays in the engine.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import structlog
from aiohttp import web

from asyncpage.core.pooling import no_generation
from asyncpage.errors import Failure, RequestError
from asyncpage.messages import Finish, TokenPrompt
from asyncpage.server.call import Call
from asyncpage.server.context import CONTEXT, REQUEST_ID, Context
from asyncpage.server.engine_port import Engine
from asyncpage.server.event_stream import EventStream
from asyncpage.server.exchange import Exchange
from asyncpage.server.failure import internal_failure
from asyncpage.server.generate.call_fields import Setting
from asyncpage.server.generate.dialect import Dialect
from asyncpage.server.generate.shape import Head
from asyncpage.server.generate.structured_fields import compile_call
from asyncpage.server.generate.usage import total_usage
from asyncpage.server.identity import new_id
from asyncpage.server.json_body import read_object

log = structlog.get_logger("asyncpage.server")

CLIENT_GONE = 499  # for logs and counters only: nobody is there to read it


async def generate(request: web.Request, dialect: Dialect) -> web.StreamResponse:
    """Answer one generation call. Errors: `RequestError` as long as no header is out."""
    if not request.app[CONTEXT].engine.is_generative:
        raise no_generation()
    return await run_call(request, dialect)


async def run_call(request: web.Request, dialect: Dialect) -> web.StreamResponse:
    """Answer one call of any kind. Errors: `RequestError` as long as no header is out."""
    context = request.app[CONTEXT]
    arrived = context.engine.now()
    context.check_ready()
    body = await read_object(request, context.config.max_body_bytes)
    context.check_ready()  # the upload may have taken a while
    call = dialect.read(body, read_setting(context, arrived))
    if call.ignored:
        context.metrics.fields_ignored(len(call.ignored))
        log.debug("fields.ignored", request_id=request[REQUEST_ID], count=len(call.ignored))
    constraint = await compile_call(context.engine, call)
    if call.output.return_token_ids:
        call = replace(call, prompts=await _as_ids(context.engine, call))
    context.check_ready()  # both may have taken a while
    adapter = context.engine.adapters.find(call.model)  # as it is now, whatever is loaded later
    fingerprint = context.engine.fingerprint + ("" if adapter is None else f"_{adapter.identity[:12]}")
    head = Head(new_id(dialect.id_prefix), int(context.engine.wall()), call.model, fingerprint)
    options = replace(call.options, label=head.id, constraint=constraint, lora=adapter)
    exchange = Exchange(context.engine, call, options, context.metrics)
    context.open_calls.add(exchange)
    ending: Failure | None = None  # of a call that the exchange itself knows nothing bad of
    try:
        if call.output.stream:
            return await _stream(request, context, exchange, dialect, head)
        collector = dialect.collector(call, head, context.engine.tokens)
        await exchange.admit(collector)
        await exchange.done()
        answer = await collector.answer()
        return web.Response(text=answer, content_type="application/json")
    except (asyncio.CancelledError, ConnectionError):
        ending = Failure(CLIENT_GONE, "the client has left", code="client_gone")
        raise
    except RequestError as error:
        ending = error.failure
        raise
    except Exception:
        ending = internal_failure()
        raise
    finally:
        exchange.close()
        context.open_calls.discard(exchange)
        _account(request, context, exchange, head, exchange.failure or ending, context.engine.now() - arrived)


async def _stream(
    request: web.Request, context: Context, exchange: Exchange, dialect: Dialect, head: Head
) -> web.StreamResponse:
    config = context.config

    def lost(outcome: str) -> None:
        if outcome == "slow_reader":
            context.metrics.reader_cut()
        exchange.fail(Failure(CLIENT_GONE, "the client has left or does not read", code=outcome))

    stream = EventStream(
        request,
        max_buffered_bytes=config.max_buffered_bytes,
        keep_alive_s=config.keep_alive_s,
        keep_alive=dialect.keep_alive,
        now=context.engine.now,
        on_lost=lost,
    )
    writer = dialect.writer(stream, exchange, head, context.engine.tokens, context.pace)
    await exchange.admit(writer)
    try:
        await stream.open()
        writer.flush()
        await exchange.done()
    except RequestError as error:
        if error.failure.status == CLIENT_GONE:
            raise ConnectionResetError(error.failure.message) from None
    except ConnectionError:
        raise
    except Exception:
        # Headers are out, so this is the last place where the client can still be told.
        log.exception("stream.failed", id=head.id, request_id=request[REQUEST_ID])
        exchange.fail(internal_failure())
    finally:
        stream.stop()
    return await stream.close(writer.last_events())


async def _as_ids(engine: Engine, call: Call) -> tuple[TokenPrompt, ...]:
    """The call's prompts as the ids that run, which its answer shows. Errors: `RequestError` as when it ran."""
    keep = call.options.truncate_prompt_tokens
    found = []
    for prompt in call.prompts:
        ids = np.asarray(await engine.tokenize(prompt), dtype="<i4")
        found.append(TokenPrompt((ids if keep is None else ids[-keep:]).tobytes()))
    return tuple(found)


def read_setting(context: Context, arrived: float) -> Setting:
    """What body readers need to know of this server."""
    engine, config = context.engine, context.config
    return Setting(
        model_names=(*engine.model_names, *engine.adapters.names),
        vocab_size=engine.vocab_size,
        max_model_len=engine.max_model_len,
        has_chat_template=engine.has_chat_template,
        defaults=engine.sampling_defaults,
        max_choices=min(config.max_prompts, engine.max_requests),
        timeout_s=config.request_timeout_s,
        now=arrived,
        pooling=engine.pooling,
        hidden_size=engine.hidden_size,
        max_inputs=engine.max_requests,
        tool_parser=engine.tool_parser,
        reasoning_parser=engine.reasoning_parser,
        prompt_end=engine.prompt_end,
        auto_tool_choice=config.enable_auto_tool_choice,
    )


def _account(
    request: web.Request, context: Context, exchange: Exchange, head: Head, failure: Failure | None, elapsed_s: float
) -> None:
    """One log line and the counters of a call that is over. No prompt and no output is in either."""
    call = exchange.call
    finishes: list[Finish] = [finish for finish in exchange.finishes if finish is not None]
    usage = total_usage(finishes, call.sampling.n) if len(finishes) == call.choices else None
    outcome: str
    if failure is None and usage is not None:
        outcome, status = finishes[0].reason, 200
        context.metrics.call_succeeded(usage.prompt_tokens, tuple(finishes))
        context.metrics.call_time.observe(elapsed_s)
    else:
        failure = failure or internal_failure()
        outcome, status = failure.code or str(failure.status), failure.status
        context.metrics.call_failed(outcome)
    if context.config.log_requests:
        log.info(
            "request.finished",
            id=head.id,
            request_id=request[REQUEST_ID],
            path=request.path,
            outcome=outcome,
            status=status,
            stream=call.output.stream,
            choices=call.choices,
            prompt_tokens=sum(exchange.prompt_tokens),
            completion_tokens=sum(finish.completion_tokens for finish in finishes),
            cached_tokens=usage.cached_tokens if usage is not None else None,
            first_token_s=None if exchange.first_token_s is None else round(exchange.first_token_s, 4),
            elapsed_s=round(elapsed_s, 4),
        )
