"""A naive world for the sharing allocator: real token contents in every page, everything recomputed from scratch.

Nothing here knows reference counts, keys, queues or byte counters. A sequence is a list of tokens; what a page stores
is written through the page table when tokens are computed and moved when the allocator announces a copy.
"""

from dataclasses import dataclass, field
from fractions import Fraction

from simulator.allocators.host_pool import HostPool
from simulator.allocators.paged import PageLayout, plain_layout
from simulator.allocators.paged_cow import PagedCowAllocator
from simulator.allocators.sharing import RULES, CowHolding, SharingRules
from simulator.config import EvictionPolicy
from simulator.units import ceil_div

Token = tuple[object, ...]
History = tuple[tuple[Token, ...], int | None]


@dataclass
class Sequence:
    """One sequence with its true tokens; also the demand that the allocator sees."""

    request_id: int
    prompt_tokens: int
    output_tokens: int
    sample: int = 0
    prefix: tuple[list[int], list[int]] | None = None
    tokens: list[Token] = field(default_factory=list)
    computed_tokens: int = 0
    holding: CowHolding | None = None
    priority: int = 0

    @property
    def final_tokens(self) -> int:
        return self.prompt_tokens + self.output_tokens - 1

    @property
    def target_tokens(self) -> int:
        return max(self.prompt_tokens, len(self.tokens))

    @property
    def early_tokens(self) -> int:
        """Tokens already stored, by others, that this sequence will compute again (v0 hits)."""
        return self.holding.early_tokens if self.holding else 0

    @property
    def on_device(self) -> bool:
        return self.holding is not None and self.holding.host_copy is None


class World:
    """An allocator, its sequences, and what every page really stores."""

    def __init__(
        self,
        rules: SharingRules = RULES["generic"],
        *,
        max_pages: int = 12,
        page_tokens: int = 4,
        segment_tokens: int = 3,
        host_pages: int = 6,
        layout: PageLayout | None = None,
        enable_prefix_caching: bool = True,
        eviction_policy: EvictionPolicy = "lru",
    ) -> None:
        layout = layout or plain_layout(page_tokens=page_tokens, bytes_per_token=3)
        self.page_tokens = layout.page_tokens
        self.segment_tokens = segment_tokens
        self.rules = rules
        self.caching = enable_prefix_caching
        self.allocator = PagedCowAllocator(
            layout,
            max_pages=max_pages,
            rules=rules,
            enable_prefix_caching=enable_prefix_caching,
            host=HostPool(host_pages),
            eviction_policy=eviction_policy,
        )
        self.allocator.on_copy = self._copied
        # tables that grow in step are one table, and a page stands for one of each
        self.layout = self.allocator.layout
        self.unit = self.allocator.unit
        self.host_pages = host_pages // self.unit
        self.usable_pages = (max_pages - rules.null_page) // self.unit
        self.memory: dict[int, dict[int, object]] = {}
        # page -> all tokens up to its end, and the sample they belong to if some of them are generated
        self.known: dict[int, History] = {}
        self.sequences: list[Sequence] = []
        self._ids: dict[tuple[Token, ...], int] = {}
        self._requests = 0
        self._samples: dict[int, int] = {}
        # merged pages and the v0 rules are checked for soundness only: no wrong content, no lost byte
        self.exact = (
            self.layout.row_pages == 1 and self.layout.groups[0].window_tokens is None and not rules.deduplicate
        )

    # ---- what happens

    def new(self, template: int, shared_segments: int, own_tokens: int, output_tokens: int) -> Sequence:
        """A request whose prompt begins with whole segments of a template, then has tokens nobody else has."""
        request_id, self._requests = self._requests, self._requests + 1
        ends = [(segment + 1) * self.segment_tokens for segment in range(shared_segments)]
        tokens: list[Token] = [("template", template, i) for i in range(ends[-1] if ends else 0)]
        ids = [self._ids.setdefault(tuple(tokens[:end]), len(self._ids)) for end in ends]
        tokens += [("own", request_id, i) for i in range(own_tokens)]
        self._samples[request_id] = 1
        return Sequence(request_id, len(tokens), output_tokens, prefix=(ids, ends) if ids else None, tokens=tokens)

    def admit(self, sequence: Sequence, chunk_tokens: int) -> bool:
        """Admit with hits and the first chunk behind them; checks the answer against the naive one."""
        allocator, target = self.allocator, sequence.target_tokens
        hits = allocator.hit_tokens(sequence, target)
        expected = self.expected_hits(sequence)
        before = self.distinct_pages()
        free = self.usable_pages - len(before)
        tokens = min(target, hits + chunk_tokens)
        holding = allocator.admit(sequence, tokens)
        if self.exact:
            assert hits == len(expected) * self.page_tokens
            needed = ceil_div(tokens, self.page_tokens) - len(expected) + len(set(expected) - before)
            assert (holding is not None) == (needed <= free), f"{needed} pages needed, {free} free"
        if holding is None:
            return False
        assert holding.hit_tokens == hits < target
        sequence.holding = holding
        self.sequences.append(sequence)
        self._forget(self.distinct_pages() - before - set(expected))
        sequence.computed_tokens = hits
        self._write(sequence, tokens)
        return True

    def extend(self, sequence: Sequence, new_tokens: int) -> bool:
        """Compute ``new_tokens`` more tokens: a prompt chunk, or one generated token."""
        holding = sequence.holding
        assert holding is not None
        length = sequence.computed_tokens + new_tokens
        # the engine calls for every prompt chunk, and for a generated token only when there is no room for it
        if length > holding.capacity_tokens or sequence.computed_tokens < sequence.target_tokens:
            before = self.distinct_pages()
            free = self.usable_pages - len(before)
            needed = self._pages_to_reach(sequence, length) if self.exact else 0
            grown = self.allocator.grow(holding, length, new_tokens)
            if self.exact:
                assert grown == (needed <= free), f"{needed} pages needed, {free} free"
            if not grown:
                return False
            self._forget(self.distinct_pages() - before)
        self._write(sequence, length)
        return True

    def fork(self, sequence: Sequence) -> Sequence:
        """Another sample that has the same tokens so far."""
        assert sequence.holding is not None
        length = sequence.computed_tokens
        sample = self._samples[sequence.request_id]
        self._samples[sequence.request_id] = sample + 1
        child = Sequence(
            sequence.request_id,
            sequence.prompt_tokens,
            sequence.output_tokens,
            sample=sample,
            prefix=sequence.prefix,
            tokens=sequence.tokens[:length],
            computed_tokens=length,
        )
        free = self.allocator.free_pages()
        child.holding = self.allocator.fork(sequence.holding, child, length)
        if not self.rules.deduplicate:
            assert self.allocator.free_pages() == free, "a fork took pages"
        self.sequences.append(child)
        return child

    def release(self, sequence: Sequence) -> None:
        assert sequence.holding is not None
        self.allocator.release(sequence.holding)
        sequence.holding = None
        sequence.computed_tokens = 0
        self.sequences.remove(sequence)

    def swap_out(self, group: list[Sequence]) -> bool:
        holdings = [sequence.holding for sequence in group if sequence.holding is not None]
        moving = {page for holding in holdings for table in holding.tables for page in table}
        room = self.host_pages - self._pages_on_host()
        moved_bytes = self.allocator.swap_out(list(holdings))
        assert (moved_bytes is not None) == (len(moving) <= room)
        assert moved_bytes in (None, len(moving) * self.layout.page_bytes)
        return moved_bytes is not None

    def swap_in(self, group: list[Sequence]) -> bool:
        """Bring a group back; each then computes one token, as the engine does."""
        wanted = [(sequence.holding, sequence.computed_tokens + 1) for sequence in group if sequence.holding]
        before = self.distinct_pages()
        if self.allocator.swap_in(list(wanted)) is None:
            return False
        self._forget(self.distinct_pages() - before)
        for sequence in group:
            assert sequence.holding is not None
            assert sequence.holding.capacity_tokens > sequence.computed_tokens
            self._write(sequence, sequence.computed_tokens + 1)
        return True

    # ---- the naive answers

    def distinct_pages(self) -> set[int]:
        """Pages in any table."""
        return {page for s in self.sequences if s.on_device and s.holding for t in s.holding.tables for page in t}

    def expected_hits(self, sequence: Sequence) -> list[int]:
        """The page known longest for each leading full page whose whole history is stored, never for all tokens."""
        found: list[int] = []
        for end in range(self.page_tokens, sequence.target_tokens, self.page_tokens):
            history = self._history(sequence, end)
            pages = [page for page, known in self.known.items() if known == history]
            if not pages:
                break
            found.append(pages[0])
        return found

    def check(self) -> None:
        """All laws: bytes, states, and that every sequence reads its own tokens."""
        allocator = self.allocator
        holdings = [s.holding for s in self.sequences if s.on_device and s.holding is not None]
        allocator.check(holdings)
        pages = self.distinct_pages()
        assert allocator.free_pages() == (self.usable_pages - len(pages)) * self.unit
        occupancy = allocator.occupancy()
        assert occupancy.allocated_bytes == len(pages) * self.layout.page_bytes
        parts = occupancy.allocated_bytes + occupancy.cached_bytes + occupancy.free_bytes + occupancy.unusable_bytes
        assert parts == occupancy.capacity_bytes
        if self.exact:
            cached = [page for page in self.known if page not in pages]
            assert occupancy.cached_bytes == len(cached) * self.layout.page_bytes
        self._check_bytes()
        for sequence in self.sequences:
            if sequence.on_device:
                self._read(sequence)

    def _check_bytes(self) -> None:
        """Stored bytes = lengths - discount, and no slot that will be filled is in the tail."""
        live = [s for s in self.sequences if s.on_device]
        stored_bytes = tail_bytes = Fraction(0)
        # whole bytes cannot say how much one of several unequal tables stores; over full rows they are exact
        slack = sum(group.token_bytes % group.copies > 0 for group in self.layout.groups)
        for index, group in enumerate(self.layout.groups):
            slots: dict[tuple[int, int], bool] = {}
            stored: set[tuple[int, int]] = set()
            for sequence in live:
                for position, page, slot in self._slots(sequence, index):
                    slots[page, slot] = slots.get((page, slot), False) or position < sequence.final_tokens
                    if position < sequence.computed_tokens + sequence.early_tokens:
                        stored.add((page, slot))
            pages = len({page for page, _ in slots})
            token_bytes = Fraction(group.token_bytes, group.copies)
            stored_bytes += len(stored) * token_bytes
            tail_bytes += (list(slots.values()).count(False) - len(slots)) * token_bytes
            tail_bytes += pages * self.layout.page_bytes
        counted = sum(s.computed_tokens for s in live) * self.layout.bytes_per_token
        difference = abs(counted - self.allocator.discount_bytes - stored_bytes)
        assert difference == 0 or difference < slack
        difference = abs(self.allocator.tail_bytes - tail_bytes)
        assert difference == 0 or difference < slack

    # ---- how

    def _slots(self, sequence: Sequence, index: int) -> list[tuple[int, int, int]]:
        """``(position, page, slot)`` of everything held in one group."""
        holding, copies = sequence.holding, self.layout.groups[index].copies
        assert holding is not None
        return [
            ((entry // copies + holding.dropped[index]) * self.page_tokens + slot, page, slot)
            for entry, page in enumerate(holding.tables[index])
            for slot in range(self.page_tokens)
        ]

    def _write(self, sequence: Sequence, length: int) -> None:
        """Store the tokens up to ``length``; the pages that are then full can be found from now on."""
        while len(sequence.tokens) < length:
            sequence.tokens.append(("output", sequence.request_id, sequence.sample, len(sequence.tokens)))
        for index in range(len(self.layout.groups)):
            for position, page, slot in self._slots(sequence, index):
                if sequence.computed_tokens <= position < length:
                    self.memory.setdefault(page, {})[slot] = (index, sequence.tokens[position])
        sequence.computed_tokens = length
        if self.caching and self.exact and sequence.holding is not None:
            for row, page in enumerate(sequence.holding.pages[: length // self.page_tokens]):
                self.known.setdefault(page, self._history(sequence, (row + 1) * self.page_tokens))

    def _read(self, sequence: Sequence) -> None:
        for index in range(len(self.layout.groups)):
            for position, page, slot in self._slots(sequence, index):
                if position < sequence.computed_tokens:
                    found = self.memory.get(page, {}).get(slot)
                    assert found == (index, sequence.tokens[position]), (
                        f"{sequence}: {found} at {position}, page {page}"
                    )

    @staticmethod
    def _history(sequence: Sequence, end: int) -> History:
        return tuple(sequence.tokens[:end]), sequence.sample if end > sequence.prompt_tokens else None

    def _forget(self, taken: set[int]) -> None:
        for page in taken:
            self.known.pop(page, None)

    def _copied(self, source: int, target: int, count: int) -> None:
        for offset in range(count):
            self.memory[target + offset] = dict(self.memory.get(source + offset, {}))

    def _pages_to_reach(self, sequence: Sequence, length: int) -> int:
        holding = sequence.holding
        assert holding is not None
        held = len(holding.tables[0]) * self.page_tokens
        needed = max(0, ceil_div(length - held, self.page_tokens))
        start = sequence.computed_tokens
        if start % self.page_tokens:
            page = holding.tables[0][start // self.page_tokens]
            others = [s for s in self.sequences if s is not sequence and s.on_device and s.holding]
            needed += any(page in s.holding.tables[0] for s in others if s.holding)
        return needed

    def _pages_on_host(self) -> int:
        copies = [s.holding.host_copy for s in self.sequences if s.holding and s.holding.host_copy]
        return len({page for copy in copies for page in copy.pages()})
