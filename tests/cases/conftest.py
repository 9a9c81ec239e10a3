"""The fixtures of the cases: the servers of this test process, the case's own view of them, and the models."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cases.case import all_cases
from tests.cases.flags import DEFAULTS
from tests.cases.model_folder import Model
from tests.cases.oracle import Oracle
from tests.cases.suite import Pool, Suite
from tests.cases.tiny import write_tiny

SHARED_MACHINE = 5.0  # how much longer than alone a second may seem on a machine that runs other tests too


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Cases that can share a server follow one another: to start one costs more than most cases do."""
    here = Path(__file__).parent
    places = [place for place, item in enumerate(items) if item.path.parent == here]
    for place, item in zip(places, sorted((items[place] for place in places), key=_likeness), strict=True):
        items[place] = item


def _likeness(item: pytest.Item) -> str:
    marker = item.get_closest_marker("case")
    if marker is None:
        return ""
    case = all_cases()[marker.args[0]]
    asked = {name: value for name, value in case.config.items() if DEFAULTS.get(name) != value}
    return f"{case.fixture} {sorted(asked) if case.fixture == 'TINY' else ''}"


@pytest.fixture(scope="session")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    pool = Pool(tmp_path_factory.mktemp("cases"))
    yield pool
    pool.close()


@pytest.fixture
def suite(pool: Pool, request: pytest.FixtureRequest) -> Suite:
    case = all_cases()[request.node.get_closest_marker("case").args[0]]
    slack = 1.0 if request.config.getoption("--strict-times") else SHARED_MACHINE
    return Suite(pool, case, request.node, slack, thorough=request.config.getoption("--long"))


@pytest.fixture(scope="session")
def tiny(pool: Pool) -> Model:
    return pool.model("tiny", write_tiny)


@pytest.fixture(scope="session")
def tiny_long(pool: Pool) -> Model:
    """TINY with room for 131,072 tokens."""
    return pool.model("tiny-long", lambda folder: write_tiny(folder, context=131_072))


@pytest.fixture(scope="session")
def oracle(tiny: Model) -> Oracle:
    return Oracle(tiny)


@pytest.fixture(scope="session")
def outside(pool: Pool) -> Path:
    """A folder that no server has any business in."""
    return pool.folder.parent
