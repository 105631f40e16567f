"""What a page holds, as one integer: equal keys mean equal content, from the first token to the end of the page.

Engines hash token ids along the sequence; a trace knows which prompts begin alike without knowing the tokens. So
content is named, not hashed. A page that lies within the part of the prompt covered by ``prefix`` is named by the
prefix-chained id of the segment that its last token falls into; any other full page of the prompt belongs to the
request (all its samples, and itself after a preemption); a page with generated tokens belongs to one sample.

Keys of neighbouring pages are an arithmetic progression, so the keys of a whole prompt are a few ``range`` objects.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Protocol

#: distance of the keys of neighbouring pages: above any name's span, so that names never meet, and with scattered
#: low bits, so that a hash table spreads the pages of many sequences evenly
_STRIDE = (1 << 66) + 0x9E3779B97F4A7C15
#: names of one request: its prompt, then one a sample (a beam search takes a new one at every fork)
_NAME_BITS = 32


class SharedDemand(Protocol):
    """What sharing needs to know of a sequence, beside the figures of ``base.Demand``.

    ``target_tokens`` is the length of the sequence as far as it is known at admission: the prompt, and after a
    preemption what was generated before. ``computed_tokens`` is how much KV it has; it must be right at a release.
    ``sample`` tells apart the sequences of one request and names one line of content for good: a beam that goes on with
    another beam's tokens takes a new number. ``prefix`` is ``(ids, ends)``: segment ``s`` of the prompt ends before
    token ``ends[s]``, and two requests with the same id have the same tokens from the first to that end.
    """

    request_id: int
    prompt_tokens: int
    output_tokens: int
    final_tokens: int
    target_tokens: int
    computed_tokens: int
    sample: int
    prefix: tuple[Sequence[int], Sequence[int]] | None


def key_ranges(demand: SharedDemand, first_page: int, last_page: int, page_tokens: int) -> Iterator[range]:
    """Keys of the pages ``first_page .. last_page - 1`` of a sequence, in order. O(segments touched)."""
    page = first_page
    for name, end in _names(demand, (first_page + 1) * page_tokens):
        stop = min(end // page_tokens, last_page)
        if stop > page:
            yield range(name + page * _STRIDE, name + stop * _STRIDE, _STRIDE)
            page = stop
        if page == last_page:
            return
    name = _private(demand.request_id, demand.sample + 1)
    yield range(name + page * _STRIDE, name + last_page * _STRIDE, _STRIDE)


def _names(demand: SharedDemand, first_end: int) -> Iterator[tuple[int, int]]:
    """Name and end, in tokens, of each part of the prompt that reaches ``first_end`` or further."""
    prompt = demand.prompt_tokens
    if demand.prefix is not None:
        ids, ends = demand.prefix
        for segment in range(bisect_left(ends, first_end), len(ends)):
            yield 2 * int(ids[segment]), min(int(ends[segment]), prompt)
    yield _private(demand.request_id, 0), prompt


def _private(request_id: int, line: int) -> int:
    return ((request_id << _NAME_BITS) + line) * 2 + 1
