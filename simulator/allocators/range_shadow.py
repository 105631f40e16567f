"""Shadow memory of a contiguous pool, byte by byte."""

from typing import cast

from simulator.allocators.base import Holding
from simulator.allocators.content_map import ContentMap
from simulator.allocators.contiguous import ContiguousAllocator, RangeHolding
from simulator.allocators.lineage import Name
from simulator.allocators.shadow import NOTHING, ShadowMemory, described, wrong_read
from simulator.allocators.violations import Violation


class RangeShadow(ShadowMemory):
    """The record of ``allocator``'s memory. A token takes ``bytes_per_token`` addresses."""

    def __init__(self, allocator: ContiguousAllocator) -> None:
        super().__init__()
        self._granule_bytes = allocator.granule_bytes
        self._token_bytes = allocator.bytes_per_token
        self._map = ContentMap()

    def write(self, holding: Holding, first: int, last: int) -> None:
        scale = self._token_bytes
        for start, end, name in self._stories[id(holding)].lineage.spans(first, last):
            self._map.write(self._address(holding, start), (end - start) * scale, name, start * scale)

    def copy(self, source: int, target: int, count: int) -> None:
        self._map.copy(source, target, count)

    def verify_read(self, holding: Holding, length: int) -> Violation | None:
        scale = self._token_bytes
        for start, end, name in self._stories[id(holding)].lineage.spans(0, length):
            position = start * scale
            for found in self._map.read(self._address(holding, start), (end - start) * scale):
                if found.content != name or found.position != position:
                    other = cast(Name | None, found.content)
                    what = NOTHING if other is None else described(other, found.position // scale)
                    return wrong_read(holding, position // scale, f"byte {found.start:,}", what)
                position += found.end - found.start
        return None

    def last_writer(self, address: int, size: int) -> int | None:
        """The request whose own KV (not a shared prompt's) is the first in ``size`` addresses from ``address``."""
        for found in self._map.read(address, size):
            name = cast(Name | None, found.content)
            if name is not None and name[0] == "request":
                return name[1]
        return None

    def _address(self, holding: Holding, position: int) -> int:
        assert isinstance(holding, RangeHolding)
        return holding.start * self._granule_bytes + position * self._token_bytes
