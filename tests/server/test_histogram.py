"""The histogram: the same numbers as the library's own."""

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client import Histogram as Reference

from asyncpage.server.histogram import Histogram

BOUNDS = (0.1, 1.0, 2.5, 10.0)


@given(st.lists(st.sampled_from([0.0, 0.05, 0.1, 0.5, 1.0, 2.5, 9.0, 10.0, 11.0, 1e6]), max_size=30))
def test_it_renders_what_the_library_renders(values: list[float]) -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    cheap = Histogram("h", "help", BOUNDS)
    ours.register(cheap)
    reference = Reference("h", "help", buckets=BOUNDS, registry=theirs)
    for value in values:
        cheap.observe(value)
        reference.observe(value)
    expected = [line for line in generate_latest(theirs).splitlines() if b"_created" not in line]
    assert generate_latest(ours).splitlines() == expected
