"""The longest sequence of a decoding batch, against the lengths of all."""

from hypothesis import given
from hypothesis import strategies as st

from simulator.allocators.base import Holding
from simulator.serving.batch import DecodeBatch
from simulator.serving.sequence import Sequence


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("join"), st.integers(1, 30)),
            st.tuples(st.just("leave"), st.integers(0, 50)),
            st.tuples(st.just("go on"), st.integers(1, 5)),
        ),
        max_size=60,
    )
)
def test_the_longest_is_the_longest_whoever_comes_and_goes(events: list[tuple[str, int]]) -> None:
    batch, members = DecodeBatch(page_tokens=4), list[Sequence]()
    for number, (event, value) in enumerate(events):
        if event == "join":
            sequence = Sequence(number, prompt_tokens=value, output_tokens=10**6, arrival_ns=0)
            sequence.holding = Holding(sequence)
            sequence.holding.held_tokens, sequence.holding.capacity_tokens = value, 10**6
            batch.join(sequence, value)
            members.append(sequence)
        elif event == "leave" and members:
            batch.leave(members.pop(value % len(members)))
        elif event == "go on":
            batch.step += value
        if members:
            assert batch.longest_tokens(batch.step) == max(batch.length(sequence) for sequence in members)
