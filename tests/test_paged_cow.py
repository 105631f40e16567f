"""Sharing, forks, copy-on-write and swap: random use against a naive world, closed forms, hand-computed cases."""

import random
from collections.abc import Callable

import pytest
from cow_world import Sequence, World
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from simulator.allocators.paged import PageGroup, PageLayout
from simulator.allocators.sharing import RULES, SharingRules

HYBRID = PageLayout(4, 4 * 6 + 8, (PageGroup(6), PageGroup(12, copies=2, window_tokens=6)))
WINDOW = PageLayout(4, 12, (PageGroup(3, window_tokens=5),))
LAYERED = PageLayout(4, 8, (PageGroup(6, copies=3),))


class Player:
    """Moves that a serving engine could make, each chosen by numbers so that any driver can play them."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.preempted: list[Sequence] = []
        self.moves: tuple[Callable[[int, int], None], ...] = (
            self.admit,
            self.admit,
            self.resume,
            self.prefill,
            self.decode,
            self.decode,
            self.decode,
            self.fork,
            self.finish,
            self.preempt,
            self.swap,
        )

    def play(self, move: int, a: int, b: int) -> None:
        self.moves[move % len(self.moves)](a, b)

    def admit(self, a: int, b: int) -> None:
        sequence = self.world.new(a % 3, (a // 3) % 5, b % 6 + (a // 3 % 5 == 0), 1 + (a + b) % 9)
        self.world.admit(sequence, 1 + b % 11)

    def resume(self, a: int, b: int) -> None:
        if self.preempted and self.world.admit(self.preempted[a % len(self.preempted)], 1 + b % 11):
            self.preempted.remove(self.world.sequences[-1])

    def prefill(self, a: int, b: int) -> None:
        todo = [s for s in self._here() if s.computed_tokens < s.target_tokens]
        if todo:
            sequence = todo[a % len(todo)]
            self.world.extend(sequence, min(1 + b % 7, sequence.target_tokens - sequence.computed_tokens))

    def decode(self, a: int, b: int) -> None:
        todo = [s for s in self._decoding() if s.computed_tokens < s.final_tokens]
        if todo:
            self.world.extend(todo[a % len(todo)], 1)

    def fork(self, a: int, b: int) -> None:
        todo = self._decoding()
        if todo and len(self.world.sequences) < 8:
            self.world.fork(todo[a % len(todo)])

    def finish(self, a: int, b: int) -> None:
        if self.world.sequences:
            self.world.release(self.world.sequences[a % len(self.world.sequences)])

    def preempt(self, a: int, b: int) -> None:
        todo = self._here()
        if todo:
            sequence = todo[a % len(todo)]
            self.world.release(sequence)
            self.preempted.append(sequence)

    def swap(self, a: int, b: int) -> None:
        if not self.world.sequences:
            return
        chosen = self.world.sequences[a % len(self.world.sequences)]
        group = [s for s in self.world.sequences if s.request_id == chosen.request_id]
        if not chosen.on_device:
            self.world.swap_in([s for s in group if not s.on_device])
        elif all(s.target_tokens <= s.computed_tokens < s.final_tokens for s in group if s.on_device):
            self.world.swap_out([s for s in group if s.on_device])

    def end(self) -> None:
        while self.world.sequences:
            self.world.release(self.world.sequences[0])
        self.world.check()

    def _here(self) -> list[Sequence]:
        return [s for s in self.world.sequences if s.on_device]

    def _decoding(self) -> list[Sequence]:
        return [s for s in self._here() if s.computed_tokens >= s.target_tokens]


NUMBERS = st.integers(0, 999)


class SharingMachine(RuleBasedStateMachine):
    """Any order of moves keeps every law of the naive world."""

    @initialize(
        profile=st.sampled_from(["generic", "vllm-0.33", "vllm-0.11", "vllm-0.6", "sglang"]),
        page_tokens=st.sampled_from([1, 2, 4]),
        segment_tokens=st.sampled_from([1, 3, 4]),
        max_pages=st.integers(4, 16),
        layout=st.sampled_from([None, None, None, HYBRID, WINDOW, LAYERED]),
        caching=st.sampled_from([True, True, False]),
    )
    def start(
        self,
        profile: str,
        page_tokens: int,
        segment_tokens: int,
        max_pages: int,
        layout: PageLayout | None,
        caching: bool,
    ) -> None:
        self.player = Player(
            World(
                RULES[profile],  # type: ignore[index]
                max_pages=max_pages * (1 if layout is None else layout.row_pages),
                page_tokens=page_tokens,
                segment_tokens=segment_tokens,
                layout=layout,
                enable_prefix_caching=caching,
            )
        )

    @rule(move=st.integers(0, 10), a=NUMBERS, b=NUMBERS)
    def move(self, move: int, a: int, b: int) -> None:
        self.player.play(move, a, b)

    @rule(move=st.sampled_from([0, 4, 7, 10]), a=NUMBERS, b=NUMBERS)
    def likely_move(self, move: int, a: int, b: int) -> None:
        self.player.play(move, a, b)

    @invariant()
    def laws_hold(self) -> None:
        self.player.world.check()

    def teardown(self) -> None:
        if hasattr(self, "player"):
            self.player.end()


TestSharingMachine = SharingMachine.TestCase
TestSharingMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def play_randomly(world: World, moves: int, seed: int, check_every: int) -> None:
    numbers = random.Random(seed)
    player = Player(world)
    for count in range(moves):
        player.play(numbers.randrange(11), numbers.randrange(1000), numbers.randrange(1000))
        if count % check_every == 0:
            world.check()
    player.end()


WORLDS = [
    pytest.param(rules, layout, id=f"{name}-{shape}")
    for name, rules in [*RULES.items(), ("best-fit ids", SharingRules(free_order="address_ordered"))]
    for shape, layout in (("plain", None), ("hybrid", HYBRID))
]


@pytest.mark.parametrize(("rules", "layout"), WORLDS)
def test_random_use_keeps_every_law(rules: SharingRules, layout: PageLayout | None) -> None:
    pages = 20 if layout is None else 45
    play_randomly(World(rules, max_pages=pages, layout=layout), 600, seed=1, check_every=5)


@pytest.mark.long
@pytest.mark.parametrize(("rules", "layout"), WORLDS)
def test_a_million_random_moves_keep_every_law(rules: SharingRules, layout: PageLayout | None) -> None:
    pages = 24 if layout is None else 60
    play_randomly(World(rules, max_pages=pages, layout=layout), 1_000_000 // len(WORLDS) + 1, seed=2, check_every=40)
