"""The state of a shared pool as a value: what can happen next depends on nothing else.

Pages are numbered as they are met, in tables and then in the order in which they will be taken: a pool that is handed
out by queues and stacks does not care for names. What only saves work (look-ups that are remembered, numbers of
contents, entries of a queue that count no more) and what only counts does not belong to it.
"""

from collections.abc import Hashable
from typing import Any

from cow_world import Sequence, World

from simulator.allocators.sharing import CowHolding


class _Names(dict[int, int]):
    """Numbers by first appearance."""

    def __missing__(self, page: int) -> int:
        return self.setdefault(page, len(self))


def state_of(world: World) -> Hashable:
    """Equal for two worlds that differ in names of pages, caches and counts only."""
    names, host_names = _Names(), _Names()
    sequences = tuple(_sequence(one, names, host_names, world.sequences) for one in world.sequences)
    pages = world.allocator.pages
    order = tuple(names[page] for page in pages.free_ids())
    references = frozenset((names[page], count) for page, count in enumerate(pages.references) if count)
    known = pages.contents.contents()
    contents = frozenset((name, at, tuple(names[page] for page in held)) for name, at, held in known)
    return sequences, order, references, contents, _host(world, host_names), _naive(world, names)


def _sequence(one: Sequence, names: _Names, host_names: _Names, everybody: list[Sequence]) -> Hashable:
    holding = one.holding
    assert holding is not None
    tables = tuple(tuple(names[page] for page in table) for table in holding.tables)
    copy: Any = holding.host_copy
    if copy is not None:
        there = tuple(tuple(host_names[page] for page in table) for table in copy.tables)
        tail = host_names[copy.tail_page] if copy.tail_page >= 0 else -1
        copy = there, tail, copy.dropped, copy.held_tokens, copy.registered, copy.shared_length
    return _asks(one), one.computed_tokens, tables, _figures(holding), _tail(holding, everybody), copy


def _asks(one: Sequence) -> Hashable:
    return one.request_id, one.sample, tuple(one.tokens)


def _figures(holding: CowHolding) -> Hashable:
    figures = holding.held_tokens, holding.capacity_tokens, holding.hit_tokens, holding.registered, holding.early_tokens
    return figures, tuple(holding.dropped)


def _tail(holding: CowHolding, everybody: list[Sequence]) -> Hashable:
    """Who shares the last page, in the order in which they joined."""
    tail = holding.shared_tail
    if tail is None:
        return None
    places = {id(one.holding): place for place, one in enumerate(everybody)}
    return tail.length, tail.end, tuple(places[id(sharer)] for sharer in tail.sharers)


def _host(world: World, names: _Names) -> Hashable:
    host = world.allocator.host
    assert host is not None
    held = frozenset((names[page], count) for page, count in host._references.items())
    return tuple(names[page] for page in host._pool.free_ids()), held


def _naive(world: World, names: _Names) -> Hashable:
    """What the model believes: contents, by whom they were stored first, and what cached pages really hold."""
    stored: dict[Any, list[int]] = {}
    for page, history in world.known.items():
        stored.setdefault(history, []).append(names[page])
    cached = world.known.keys() - world.distinct_pages()
    memory = frozenset((names[page], frozenset(world.memory[page].items())) for page in cached)
    histories = frozenset((history, tuple(pages)) for history, pages in stored.items())
    return histories, memory, tuple(world._samples.items())
