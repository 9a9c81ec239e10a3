"""The native code of every variant that this processor runs."""

from __future__ import annotations

import pytest

from asyncpage.kernels import native
from asyncpage.kernels.native import Native
from asyncpage.kernels.variant import VARIANTS, Variant, read_processor


@pytest.fixture(scope="session", params=VARIANTS, ids=lambda variant: variant.name)
def variant(request: pytest.FixtureRequest) -> Variant:
    asked: Variant = request.param
    if not asked.suits(read_processor()):
        pytest.skip(f"hardware: this processor does not run {asked.name}")
    return asked


@pytest.fixture(scope="session")
def library(variant: Variant, tmp_path_factory: pytest.TempPathFactory) -> Native:
    found = native.build(tmp_path_factory.mktemp(f"native-{variant.name}"), variant=variant)
    assert found.path is not None, found.reason
    return found
