"""The waiting queue against Python's own sort."""

from array import array

from hypothesis import given
from hypothesis import strategies as st

from asyncpage.core.policy import WaitingQueue, fcfs, priority
from asyncpage.core.sampling import SamplingParams
from asyncpage.core.sequence import Sequence
from asyncpage.messages import RequestId, RequestOptions


def make(arrival: int, level: int) -> Sequence:
    return Sequence(
        request=RequestId(arrival),
        tokens=array("i", [1]),
        prompt_tokens=1,
        limit=2,
        arrival=arrival,
        root=b"",
        names=(),
        sampling=SamplingParams(),
        options=RequestOptions(priority=level),
        seed=0,
        end_token_ids=(),
        bad_word_ids=(),
    )


@given(st.lists(st.integers(-2, 2), max_size=30), st.data())
def test_the_queue_is_in_policy_order_whatever_comes_and_goes(levels: list[int], data: st.DataObject) -> None:
    made = [make(arrival, level) for arrival, level in enumerate(levels)]
    for policy, key in ((fcfs, lambda s: s.arrival), (priority, lambda s: (s.options.priority, s.arrival))):
        queue = WaitingQueue(policy)
        for sequence in data.draw(st.permutations(made)):
            queue.put(sequence)
        assert list(queue) == sorted(made, key=key)
        gone = data.draw(st.sets(st.sampled_from(made), max_size=10)) if made else set()
        assert all(queue.remove(sequence) for sequence in gone)
        assert not any(queue.remove(sequence) for sequence in gone)
        assert list(queue) == sorted(set(made) - gone, key=key)
