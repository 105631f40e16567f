"""How the tests of contiguous allocators build one and ask it for memory."""

from dataclasses import dataclass

from simulator.allocators.base import Cause
from simulator.allocators.contiguous import ContiguousAllocator, RangeHolding
from simulator.config import ContiguousConfig

FITS = ["first", "best", "next", "worst", "buddy"]
RESERVES = ["max_model_len", "pow2", "exact", "grow"]


@dataclass
class Sequence:
    prompt_tokens: int
    output_tokens: int = 1
    request_id: int = 0

    def __post_init__(self) -> None:
        self.final_tokens = self.prompt_tokens + self.output_tokens - 1


def build(
    capacity_tokens: int, max_model_len: int, *, bytes_per_token: int = 10, cycles: int = 1, **keys: object
) -> ContiguousAllocator:
    return ContiguousAllocator(
        ContiguousConfig.model_validate({"kind": "contiguous", **keys}),
        capacity_bytes=capacity_tokens * bytes_per_token,
        bytes_per_token=bytes_per_token,
        max_model_len=max_model_len,
        search_cycles_per_hole=cycles,
    )


def admitted(allocator: ContiguousAllocator, demand: Sequence, tokens: int | None = None) -> RangeHolding:
    holding = allocator.admit(demand, tokens or demand.prompt_tokens)
    assert holding is not None
    return holding


def cause(allocator: ContiguousAllocator) -> Cause:
    assert allocator.shortfall is not None
    return allocator.shortfall.cause
