"""What a page holds, as a name and a position: if both are equal, so is the content from the first token to the end of
the page.

Engines hash token ids along the sequence; a trace knows which prompts begin alike without knowing the tokens. So
content is named, not hashed. A page that lies within the part of the prompt covered by ``prefix`` is named by the
prefix-chained id of the segment that its last token falls into; any other full page of the prompt belongs to the
request (all its samples, and itself after a preemption); a page with generated tokens belongs to one sample.

Pages of one name follow each other, so a whole prompt is a few spans.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final, Protocol

from simulator.allocators.content_space import Span

#: names of one request: its prompt, then one a sample (a beam search takes a new one at every fork)
_NAME_BITS: Final = 32


class SharedDemand(Protocol):
    """What sharing needs to know of a sequence, beside the figures of ``base.Demand``.

    ``target_tokens`` is the length of the sequence as far as it is known at admission: the prompt, and after a
    preemption what was generated before. ``computed_tokens`` is how much KV it has; it must be right at a release.
    ``sample`` tells apart the sequences of one request and names one line of content for good: a beam that goes on with
    another beam's tokens takes a new number. ``prefix`` is ``(ids, ends)``: segment ``s`` of the prompt ends before
    token ``ends[s]``, and two requests with the same id have the same tokens from the first to that end. Of two
    requests the one with the smaller ``priority`` is more urgent.
    """

    request_id: int
    prompt_tokens: int
    output_tokens: int
    final_tokens: int
    target_tokens: int
    computed_tokens: int
    sample: int
    prefix: tuple[Sequence[int], Sequence[int]] | None
    priority: int


def content_spans(demand: SharedDemand, first_page: int, last_page: int, page_tokens: int) -> list[Span]:
    """Contents of the pages ``first_page .. last_page - 1`` of a sequence, in order. O(segments touched)."""
    spans: list[Span] = []
    page, request_id = first_page, demand.request_id
    prompt_pages = min(demand.prompt_tokens // page_tokens, last_page)
    if demand.prefix is not None and page < prompt_pages:
        ids, ends = demand.prefix
        first = bisect_left(ends, (page + 1) * page_tokens)
        for name, end in zip(ids[first:], ends[first:], strict=True):
            stop = min(end // page_tokens, prompt_pages)
            if stop > page:
                spans.append((2 * name, page, stop))
                page = stop
            if page == prompt_pages:
                break
    if page < prompt_pages:
        spans.append((_private(request_id, 0), page, prompt_pages))
        page = prompt_pages
    if page < last_page:
        spans.append((_private(request_id, demand.sample + 1), page, last_page))
    return spans


def _private(request_id: int, line: int) -> int:
    return (request_id << _NAME_BITS | line) << 1 | 1
