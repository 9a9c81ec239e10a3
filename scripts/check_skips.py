"""Prints every test that a run skipped, and fails unless each lacks hardware: python3 scripts/check_skips.py REPORT

REPORT is what pytest writes with --junitxml. An expected failure counts as a skip. A run without tests fails.
"""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

ALLOWED = "hardware:"


def unexcused(report: Path) -> list[str]:
    """Prints the skips; returns those whose reason does not begin with "hardware:", and a line if no test ran."""
    cases = list(ElementTree.parse(report).iter("testcase"))
    bad = [] if cases else [f"{report} lists no test"]
    for case in cases:
        for skip in case.iter("skipped"):
            reason = skip.get("message", "")
            line = f"skipped {case.get('classname')}.{case.get('name')}: {reason}"
            print(line)
            if not reason.startswith(ALLOWED):
                bad.append(line)
    return bad


def main() -> int:
    bad = unexcused(Path(sys.argv[1]))
    for line in bad:
        print(f"not allowed: {line}", file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
