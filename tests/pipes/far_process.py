"""A second process for the tests of links: attaches to the far end it is told and does one of the things below.

Imported by the tests for what both sides must agree on: messages by seed and their canonical text.
"""

from __future__ import annotations

import hashlib
import os
import random
import resource
import select
import signal
import sys
import time
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from asyncpage.core.sampling import SamplingParams
from asyncpage.errors import LinkClosed
from asyncpage.messages import (
    Handshake,
    LayerGroup,
    Load,
    Logprobs,
    NewRow,
    PromptLogprobs,
    RequestId,
    Shutdown,
    Step,
    StepDone,
    StepFailed,
)
from asyncpage.pipes.descriptors import LinkDescriptors
from asyncpage.pipes.link import Link, attach_link
from asyncpage.pipes.ring_transport import attach_ring_transport
from asyncpage.pipes.socket_transport import attach_socket_transport
from asyncpage.pipes.transport import Transport


def canonical(value: Any) -> str:
    """A text that two values share exactly when they are equal in type, dtype, shape and content."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{value.shape}{value.tobytes().hex()}"
    if is_dataclass(value):
        return type(value).__name__ + canonical(tuple(getattr(value, field.name) for field in fields(value)))
    if isinstance(value, tuple):
        return "(" + ",".join(map(canonical, value)) + ")"
    return f"{type(value).__name__}:{value!r}"


def digest(value: Any) -> str:
    return hashlib.sha256(canonical(value).encode("utf-8", "surrogatepass")).hexdigest()


def payloads(seed: int, count: int, largest: int) -> list[bytes]:
    """Messages of random sizes, most of them small."""
    chance = random.Random(seed)
    return [chance.randbytes(int(largest * chance.random() ** 4)) for _ in range(count)]


def int32(chance: random.Random, *shape: int) -> np.ndarray[Any, Any]:
    size = int(np.prod(shape))
    return np.frombuffer(chance.randbytes(4 * size), np.int32).reshape(shape)


def float32(chance: random.Random, *shape: int) -> np.ndarray[Any, Any]:
    return np.array([chance.random() for _ in range(int(np.prod(shape)))], np.float32).reshape(shape)


def logprobs(chance: random.Random, tokens: int) -> Logprobs:
    width = chance.randrange(4)
    return Logprobs(
        float32(chance, tokens), int32(chance, tokens), int32(chance, tokens, width), float32(chance, tokens, width)
    )


def steps(seed: int, count: int) -> list[Any]:
    """Messages to an executor; about half of them leave rows and counts as they were."""
    chance = random.Random(seed)
    rows, counts = int32(chance, 3), int32(chance, 3)
    sent: list[Any] = [
        Load({"model_path": "x", "seed": 2**63, "share": 0.5, "none": None, "sizes": (1, (2, "é"))}, 1, 2)
    ]
    for number in range(count):
        if chance.random() < 0.5:
            size = chance.choice((0, 1, 5, 300))
            rows, counts = int32(chance, size), int32(chance, size)
        added = tuple(
            NewRow(
                row=number,
                request=RequestId(1 << 62 | number),
                tokens=chance.randbytes(4 * chance.choice((0, 1, 50, 3000))),
                prompt_tokens=7,
                computed=3,
                tables=(b"", chance.randbytes(8)),
                sampling=SamplingParams(temperature=chance.random(), stop=("\ud800", "b"), logit_bias=((3, -1.5),)),
                seed=2**64 - 1,
                end_token_ids=(1, 2),
                bad_word_ids=((1,), (2, 3)),
            )
            for _ in range(chance.choice((0, 0, 0, 1, 3)))
        )
        sent.append(
            Step(
                number,
                chance.randrange(3),
                rows,
                counts,
                int32(chance, chance.choice((0, 0, 2))),
                added,
                int32(chance, chance.choice((0, 3)), 4),
                int32(chance, chance.choice((0, 0, 1)), 3),
                int32(chance, chance.choice((0, 0, 2)), 2),
                int32(chance, chance.choice((0, 0, 3)), 2),
            )
        )
    return sent


def answers(seed: int, count: int) -> list[Any]:
    """Messages from an executor."""
    chance = random.Random(seed)
    groups = (LayerGroup("full", 0, 20), LayerGroup("window", 512, 10))
    sent: list[Any] = [
        Handshake("f" * 64, 12, 0, 100, 16, groups, 8192, 49152, "float32", "float32", "cpu", "cpu", 5, 1 << 40, ("a",))
    ]
    rows, counts = int32(chance, 2), int32(chance, 2)
    for number in range(count):
        if chance.random() < 0.1:
            sent.append(StepFailed(number, 1, "no memory: ü"))
            continue
        if chance.random() < 0.5:
            size = chance.choice((0, 1, 5, 300))
            rows, counts = int32(chance, size), int32(chance, size)
        tokens = chance.choice((0, 1, 40))
        sent.append(
            StepDone(
                number,
                2,
                rows,
                counts,
                int32(chance, tokens),
                logprobs(chance, tokens) if chance.random() < 0.4 else None,
                tuple(
                    PromptLogprobs(4, 8, int32(chance, size), logprobs(chance, size))
                    for size in chance.choice(((), (), (0,), (3, 200)))
                ),
                ((3, "bad row"),) if chance.random() < 0.2 else (),
                chance.randrange(1 << 40),
                drafted=int32(chance, chance.choice((0, 0, len(rows)))),
                draft_us=chance.randrange(1 << 40),
            )
        )
    return sent


def attach_transport(descriptors: LinkDescriptors) -> Transport:
    if descriptors.kind == "ring":
        return attach_ring_transport(descriptors, 20)
    return attach_socket_transport(descriptors)


def write_payloads(descriptors: LinkDescriptors, seed: str, count: str, largest: str) -> None:
    """Write them in two parts each and leave at once; the other end reads them all the same."""
    transport = attach_transport(descriptors)
    for payload in payloads(int(seed), int(count), int(largest)):
        transport.write((payload[: len(payload) // 3], payload[len(payload) // 3 :]))


def read_payloads(descriptors: LinkDescriptors, count: str) -> None:
    """Read so many and write back one digest of them all."""
    transport = attach_transport(descriptors)
    seen = hashlib.sha256()
    for _ in range(int(count)):
        while (payload := transport.read()) is None:
            select.select([transport.wake_fd], [], [])
            transport.acknowledge()
        seen.update(len(payload).to_bytes(4, "little") + payload)
    transport.write((seen.digest(),))


def answer_digests(link: Link) -> None:
    """Each message comes back as the digest of what was received."""
    while not isinstance(message := link.wait(), Shutdown):
        link.send(StepFailed(0, 0, digest(message)))


def send_answers(link: Link, seed: str, count: str) -> None:
    for message in answers(int(seed), int(count)):
        link.send(message)
    until_closed(link)


def until_closed(link: Link) -> None:
    """Ends with code 7 when the other end's death was seen as `LinkClosed`."""
    try:
        while link.wait() is not None:
            pass
    except LinkClosed:
        sys.exit(7)


def report_idleness(link: Link) -> None:
    """Answers each step with what the wait for it cost: CPU microseconds and voluntary switches."""
    cpu, switches = time.process_time_ns(), resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
    while not isinstance(step := link.wait(), Shutdown):
        assert isinstance(step, Step)
        used = (time.process_time_ns() - cpu) // 1000
        waits = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - switches
        link.send(StepDone(step.number, 0, step.rows, step.counts, np.array([waits], np.int32), elapsed_us=used))
        cpu, switches = time.process_time_ns(), resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw


def flood(link: Link) -> None:
    """Sends until the other end is gone; ends with code 7 when that was seen while waiting for room."""
    row = np.arange(100, dtype=np.int32)
    try:
        while True:
            link.send(StepDone(0, 0, row, row, row))
    except LinkClosed:
        sys.exit(7)


def die_after_one(link: Link) -> None:
    link.send(StepFailed(1, 0, "whole"))
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    argument, act, *words = sys.argv[1:]
    descriptors = LinkDescriptors.from_argument(argument)
    if act in ("write_payloads", "read_payloads"):
        {"write_payloads": write_payloads, "read_payloads": read_payloads}[act](descriptors, *words)
        return
    acts = {
        "answer_digests": answer_digests,
        "send_answers": send_answers,
        "until_closed": until_closed,
        "report_idleness": report_idleness,
        "flood": flood,
        "die_after_one": die_after_one,
    }
    acts[act](attach_link(descriptors, polls=50), *words)


if __name__ == "__main__":
    main()
