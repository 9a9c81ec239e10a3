"""A client process that opens many requests and reads nothing but what comes, until it is killed.

    python crowd.py PORT COUNT < BODY

It writes a line once every request is sent. Tests kill it to see a whole crowd leave at once.
"""

from __future__ import annotations

import asyncio
import sys


async def one(port: int, request: bytes) -> asyncio.StreamReader:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    await writer.drain()
    reader.writer = writer  # type: ignore[attr-defined]  # kept, or the connection would be closed
    return reader


async def main(port: int, count: int, body: bytes) -> None:
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    readers = [await one(port, head.encode() + body) for _ in range(count)]
    print("sent", flush=True)
    await asyncio.gather(*(reader.read() for reader in readers))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), sys.stdin.buffer.read()))
