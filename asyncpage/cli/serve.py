"""`asyncpage serve`: checks, loads, listens, and leaves in order when it is told to.

Starts the engine, then the server that sends to it. A first SIGTERM or SIGINT drains, a second one ends at once.
Listening begins when the model is loaded; until then a connection is refused, which a health check reads rightly.

INVARIANT: whatever ends the process, the server is stopped before the engine, and the engine before the loop.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from asyncpage.cli.command import Command, Environment
from asyncpage.cli.interrupts import Interrupts
from asyncpage.cli.loop import keep_what_is_loaded, new_runner
from asyncpage.cli.settings import Settings, declare, declare_model, resolve, show
from asyncpage.cli.systemd import ServiceManager
from asyncpage.errors import ActorDied

if TYPE_CHECKING:
    from asyncpage.messages import Handshake

_EXAMPLES = """\
examples:
  asyncpage serve                                       the demo model at http://127.0.0.1:8000
  asyncpage serve ~/models/llama.gguf --port 9000       a GGUF file
  asyncpage serve ~/models/Llama-3.2-1B --dtype bfloat16
                                                        a folder with config.json and safetensors
  asyncpage serve Qwen/Qwen3-0.6B                       a model in the Hugging Face cache; asyncpage fetch puts it there
  asyncpage serve Qwen/Qwen3-0.6B-GGUF:Q8_0             one of several GGUF files there; @REVISION goes before the ':'
  asyncpage serve --host 0.0.0.0 --api-key SECRET       open to the network, closed to strangers
  asyncpage serve --kv-cache-bytes 2GiB --max-num-seqs 32
  ASYNCPAGE_PORT=9000 asyncpage serve --config asyncpage.toml --print-config

signals:    SIGTERM or SIGINT once finishes running requests (up to --drain-timeout), twice ends at once
exit codes: 0 stopped on request, 1 failure, 2 something to change in the settings, 70 an actor died
"""


def _declare(parser: argparse.ArgumentParser) -> None:
    declare_model(parser)
    declare(parser, "server", "engine")


def _run(arguments: argparse.Namespace, environment: Environment) -> int:
    settings = resolve(arguments, environment)
    for note in settings.notes:
        _say(note)
    if arguments.print_config:
        print(show(settings))
        settings.check()
        return 0
    settings.check()
    from asyncpage.cli.preflight import check_address, check_engine

    check_engine(settings.engine)
    check_address(settings.server)
    if settings.server.index_comparison is not None:
        from asyncpage.server.chart.index_comparison import read_index_comparison

        read_index_comparison(settings.server.index_comparison)  # a wrong one is refused before anything is loaded
    from asyncpage.logs import configure_logs

    configure_logs(settings.server.log_level, settings.server.log_format)
    with new_runner() as runner:
        return runner.run(_serve(settings, ServiceManager(environment)))


async def _serve(settings: Settings, manager: ServiceManager) -> int:
    from asyncpage.caches import native_folder
    from asyncpage.engine import AsyncEngine
    from asyncpage.kernels.native import look
    from asyncpage.server.http_server import serve_http

    interrupts = Interrupts()
    deaths: list[str] = []

    def died(reason: str) -> None:
        deaths.append(reason)
        interrupts.shutdown.set()
        interrupts.abort.set()

    def tell(state: str) -> None:
        try:
            manager.tell(state)
        except OSError as error:  # a manager that does not listen is no reason not to serve
            _say(f"NOTIFY_SOCKET does not take {state}: {error.strerror}")

    def stopping() -> None:
        tell("STOPPING=1")
        _say(f"finishing what runs, within {settings.server.drain_timeout_s:g} s; signal again to stop now")

    with interrupts.listening(stopping):
        _say(f"loading {settings.engine.model}")
        if settings.engine.device != "cuda" and (code := look(native_folder())).state == "unbuilt":
            _say(f"native code: {code.reason}; this once it takes some seconds more")
        engine = await interrupts.unless_shutdown(AsyncEngine.start(settings.engine, on_death=died))
        if engine is not None:
            keep_what_is_loaded()
            _say(_describe(engine.model_names, engine.handshake))

            def ready(url: str) -> None:
                hint = " (open it in a browser)" if url.startswith("http") else ""
                print(f"asyncpage ready at {url}{hint}", flush=True)
                tell("READY=1")

            try:
                await serve_http(
                    engine,
                    settings.server,
                    shutdown=interrupts.shutdown,
                    abort=interrupts.abort,
                    on_start=ready,
                )
            finally:
                await engine.stop()
    if deaths:
        raise ActorDied(deaths[0])
    _say("stopped")
    return 0


def _describe(names: tuple[str, ...], loaded: Handshake) -> str:
    if loaded.kind == "encoder":
        return (
            f"{', '.join(names)} on {loaded.device} in {loaded.dtype}, an encoder: embeddings of {loaded.hidden_size} "
            f"numbers, prompts of at most {loaded.max_model_len} tokens; {_weights(loaded)}"
        )
    return (
        f"{', '.join(names)} on {loaded.device} in {loaded.dtype}, attention backend {loaded.attention_backend}, "
        f"context of {loaded.max_model_len} tokens, {loaded.blocks} KV blocks of {loaded.block_size} tokens "
        f"({loaded.kv_bytes / 1024**3:.1f} GiB when full); {_weights(loaded)}"
    )


def _weights(loaded: Handshake) -> str:
    size = f"{loaded.weight_bytes / 1024**3:.1f} GiB of weights"
    if loaded.held_as:
        return f"{size}, held as {' and '.join(loaded.held_as)} (native code: {loaded.native})"
    if not loaded.stored_as:
        return f"{size} in {loaded.weights_dtype}"
    why = f" (no native code: {loaded.lack})" if loaded.lack else ""
    return f"{size} in {loaded.weights_dtype}, held dequantised from {' and '.join(loaded.stored_as)}{why}"


def _say(text: str) -> None:
    print(f"asyncpage: {text}", file=sys.stderr, flush=True)


COMMAND = Command(
    "serve", "[MODEL] [settings]", "serve a model over the OpenAI API, with a chat page", _EXAMPLES, _declare, _run
)
