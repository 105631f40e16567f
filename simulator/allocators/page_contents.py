"""The contents of all pages that a sequence can fill, as numbers, worked out once."""

from simulator.allocators.content_index import ContentIndex
from simulator.allocators.content_space import Numbers, Span
from simulator.allocators.page_keys import SharedDemand, content_spans


class PageContents:
    """``numbers[slot]``: by row, the content of a sequence's page in that slot; a row has a slot for each group and
    copy. They hold while the epoch of the index is ``epoch``."""

    __slots__ = ("epoch", "numbers")

    def __init__(self, epoch: int, numbers: list[Numbers]) -> None:
        self.epoch = epoch
        self.numbers = numbers


def page_contents(
    index: ContentIndex, demand: SharedDemand, tokens: int, *, page_tokens: int, slots: int
) -> PageContents:
    """The contents of ``demand`` through its whole life, and of at least ``tokens`` tokens."""
    rows = max(tokens, demand.final_tokens) // page_tokens
    spans = content_spans(demand, 0, rows, page_tokens)
    index.make_room()
    if slots == 1:
        return PageContents(index.epoch, [index.numbers(spans)])
    return PageContents(index.epoch, [index.numbers(_of_slot(spans, slot, slots)) for slot in range(slots)])


def _of_slot(spans: list[Span], slot: int, slots: int) -> list[Span]:
    return [(name * slots + slot, first, last) for name, first, last in spans]
