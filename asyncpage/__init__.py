"""asyncpage: an asyncio, actor-style engine that serves language models.

Importing this package loads none of torch, aiohttp or structlog; the names below are fetched on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asyncpage.config import EngineConfig
    from asyncpage.core.sampling import SamplingParams
    from asyncpage.engine import AsyncEngine
    from asyncpage.messages import Pooling
    from asyncpage.offline import LLM

__version__ = "0.1.0"
__all__ = ["LLM", "AsyncEngine", "EngineConfig", "Pooling", "SamplingParams", "__version__"]

_HOMES = {
    "LLM": "asyncpage.offline",
    "AsyncEngine": "asyncpage.engine",
    "EngineConfig": "asyncpage.config",
    "Pooling": "asyncpage.messages",
    "SamplingParams": "asyncpage.core.sampling",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'asyncpage' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
