"""The HTTP side: an OpenAI-compatible API, health and metrics, and a small chat page, on aiohttp."""
