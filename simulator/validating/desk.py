"""An engine's scheduler stepped by hand, and an allocator asked by hand: for worked cases, token by token."""

from typing import Any

from simulator.allocators.sharing import CowHolding
from simulator.serving.batch import DecodeBatch
from simulator.serving.ledger import Ledger
from simulator.serving.schedulers import SCHEDULERS
from simulator.serving.sequence import Sequence, State
from simulator.validating.bench import paged, shared_pages
from simulator.validating.parts import settings


class Desk:
    """One scheduler over ``blocks`` pages (the null page of some profiles among them); every step takes 1 ns."""

    def __init__(self, *, blocks: int, block_size: int = 16, max_model_len: int = 4096, **engine: Any) -> None:
        config = settings(**engine)
        self.allocator = paged(blocks, block_size, config)
        self.ledger = Ledger(64)
        self.scheduler = SCHEDULERS[config.scheduler](
            config, self.allocator, batch=DecodeBatch(block_size), ledger=self.ledger, max_model_len=max_model_len
        )
        self.sequences: list[Sequence] = []
        self.now = 0

    def add(self, *prompts: int, output: int = 16, priority: int = 0) -> list[Sequence]:
        """Requests that arrive now."""
        first = len(self.sequences)
        for index, prompt in enumerate(prompts, first):
            sequence = Sequence(
                index, prompt_tokens=prompt, output_tokens=output, arrival_ns=self.now, priority=priority
            )
            self.ledger.arrival(index, self.now)
            self.sequences.append(sequence)
            self.scheduler.enqueue(sequence, self.now)
        return self.sequences[first:]

    def begin(self) -> str:
        """Schedule one step: tokens that each sequence computes in it, in the order of arrival, as ``"80 1 0"``."""
        before = {s: s.computed_tokens for s in self.sequences if s.state is State.PREFILL}
        load = self.scheduler.schedule(self.now)
        decodes = load is not None and load.decode_sequences > 0
        tokens = []
        for sequence in self.sequences:
            if sequence.state is State.PREFILL:
                tokens.append(sequence.computed_tokens - before.get(sequence, 0))
            else:
                tokens.append(int(decodes and sequence.state is State.DECODE))
        return " ".join(map(str, tokens))

    def step(self) -> str:
        """Schedule and finish one step."""
        tokens = self.begin()
        self.now += 1
        if tokens.strip("0 "):
            self.scheduler.finish_step(self.now)
        return tokens

    def steps(self, count: int) -> str:
        """``count`` steps, apart by semicolons."""
        return "; ".join(self.step() for _ in range(count))


class Shelf:
    """A prefix cache of blocks of ``block_size``; prompts are named by the ids of their full blocks."""

    def __init__(self, profile: str, blocks: int, block_size: int = 16) -> None:
        self.allocator = shared_pages(blocks, block_size, settings(profile=profile))
        self.block_size = block_size
        self._count = 0

    def start(self, blocks: list[int], tokens: int) -> CowHolding:
        """A prompt of ``tokens``, whose first full blocks are ``blocks``; the rest is its own."""
        ends = [self.block_size * (index + 1) for index in range(len(blocks))]
        demand = Sequence(self._count, prompt_tokens=tokens, output_tokens=1000, arrival_ns=0, prefix=(blocks, ends))
        self._count += 1
        holding = self.allocator.admit(demand, tokens)
        assert holding is not None, "a worked case has room for every prompt"
        return holding

    def release(self, *holdings: CowHolding) -> None:
        """Give the pages of finished requests back, in this order."""
        for holding in holdings:
            self.allocator.release(holding)

    @property
    def free_order(self) -> str:
        """Free page ids in the order in which they would be taken."""
        return " ".join(map(str, self.allocator.pages.free_ids()))


def spelled_pages(holding: CowHolding) -> str:
    """The page table of a holding."""
    return " ".join(map(str, holding.pages))
