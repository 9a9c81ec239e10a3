"""`asyncpage` with a hash that gives every block the same name: what an attacker of a weak hash would have reached."""

from __future__ import annotations

import sys

from asyncpage.core import block_names


class Constant:
    """In the place of `hashlib.sha256`."""

    def __init__(self, data: bytes) -> None:
        pass

    def digest(self) -> bytes:
        return b"\0" * block_names.NAME_BYTES


if __name__ == "__main__":
    block_names.sha256 = Constant  # type: ignore[assignment]
    from asyncpage.cli.main import main

    sys.exit(main(sys.argv[1:]))
