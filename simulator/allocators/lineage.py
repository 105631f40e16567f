"""Whose content a sequence should find at each of its positions, whatever an allocator believes."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, cast

from simulator.allocators.base import Demand
from simulator.allocators.page_keys import SharedDemand

Name = tuple[str, int, int]
"""``("segment", id, 0)`` of a shared prompt, ``("request", id, 0)`` for the rest of a prompt, which all samples have
in common, and ``("request", id, 1 + sample)`` for what a sample generates."""

_FOREVER: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Lineage:
    """``parts`` are ``(end, name)``, each up to position ``end`` (exclusive)."""

    parts: tuple[tuple[int, Name], ...]

    def spans(self, first: int, last: int) -> Iterator[tuple[int, int, Name]]:
        """Positions ``first .. last - 1`` as ``(start, end, name)``."""
        for end, name in self.parts:
            if first < min(end, last):
                yield first, min(end, last), name
                first = min(end, last)

    def cut(self, length: int) -> tuple[tuple[int, Name], ...]:
        """The parts of the first ``length`` positions."""
        return tuple((end, name) for _, end, name in self.spans(0, length))


def lineage_of(demand: Demand, inherited: tuple[tuple[int, Name], ...] = ()) -> Lineage:
    """What a sequence of ``demand`` should find, after what it ``inherited`` by a fork."""
    shared = cast(SharedDemand, demand)
    sample = getattr(shared, "sample", 0)
    prefix = getattr(shared, "prefix", None)
    parts = list(inherited)
    for segment, end in zip(*prefix, strict=True) if prefix is not None else ():
        parts.append((min(int(end), demand.prompt_tokens), ("segment", int(segment), 0)))
    parts.append((demand.prompt_tokens, ("request", demand.request_id, 0)))
    parts.append((_FOREVER, ("request", demand.request_id, 1 + sample)))
    return Lineage(tuple(parts))
