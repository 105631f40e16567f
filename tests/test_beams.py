"""Beam search: beams that go on from each other, what they share, and what the PagedAttention paper measured."""

from pathlib import Path

import numpy as np
import pytest
from engine_worlds import World, requests_of

from simulator.allocators.verify import VerifyingAllocator
from simulator.config import EngineConfig
from simulator.engine import Engine
from simulator.errors import InputError
from simulator.metrics import summarise
from simulator.scenario import parse_scenario
from simulator.serving.sequence import Outcome

PAGE_TOKENS = 16


def beam_world(width: int, *, prompt: int, output: int, requests: int = 1, pool_pages: int = 4000) -> World:
    """Requests that come one after the other, far enough apart not to meet."""
    return World(
        requests=requests_of([(i * 10**9, prompt, output) for i in range(requests)], beams=width),
        engine=EngineConfig(on_oom="fail", max_num_seqs=64),
        kind="paged_cow",
        pool_pages=pool_pages,
        page_tokens=PAGE_TOKENS,
        max_model_len=4096,
    )


def shared_saving(world: World) -> float:
    run, engine = world.run(verify=False)
    result = summarise(
        run, world.requests, engine.allocator, label="x", page_size=PAGE_TOKENS, warmup_s=0.0, wall_s=0.0
    )
    assert result.summary["requests"]["completed"] == len(world.requests)
    return float(result.summary["kv"]["shared_saving"])


def test_all_beams_of_a_request_end_in_the_same_step_with_the_same_length() -> None:
    run, _ = beam_world(4, prompt=20, output=30).run()
    assert run.ledger.outcome[0] == Outcome.completed
    assert run.ledger.output_tokens[0] == 30
    # the prompt's step gives each of the four its first output, then come 29 steps
    assert run.recorder.steps == 30
    assert run.recorder.output_tokens == 30 * 4


def test_beams_never_read_what_another_beam_wrote() -> None:
    """Under observation: the shadow knows by whom, and after which fork, every token was written."""
    world = beam_world(4, prompt=37, output=120, requests=3)
    engine = Engine(
        world.requests,
        engine=world.engine,
        allocator=VerifyingAllocator(world.allocator()),
        cost=_cost(),
        max_model_len=4096,
    )
    engine.run()
    assert engine.allocator.totals.cow_copies > 0


def _cost() -> object:
    from engine_worlds import PlainCost

    return PlainCost()


def test_two_beams_save_less_than_half_and_k_beams_less_than_all_but_one_part() -> None:
    for width in (2, 4, 6):
        saving = shared_saving(beam_world(width, prompt=200, output=400))
        assert 0.5 * (1 - 1 / width) < saving < 1 - 1 / width


def _expected_saving(width: int, prompt: int, output: int, seed: int) -> float:
    """The same beams as plain lists of page identities: no reference counts, no tables, no engine."""
    rng = np.random.default_rng(seed)
    fresh = iter(range(10**9))
    pages = [next(fresh) for _ in range(-(-prompt // PAGE_TOKENS))]
    beams = [list(pages) for _ in range(width)]
    entries = owned = 0
    for length in range(prompt, prompt + output - 1):
        for index, beam in enumerate(beams):
            last_is_shared = any(beam[-1] in other for i, other in enumerate(beams) if i != index)
            if length % PAGE_TOKENS == 0:
                beam.append(next(fresh))
            elif last_is_shared:
                beam[-1] = next(fresh)
        entries += sum(map(len, beams))
        owned += len(set().union(*beams))
        beams = [list(beams[parent]) for parent in rng.integers(width, size=width)]
    return 1 - owned / entries


@pytest.mark.parametrize("width", [2, 4])
def test_the_saving_is_that_of_a_list_of_pages(width: int) -> None:
    expected = np.mean([_expected_saving(width, 40, 100, seed) for seed in range(40)])
    assert shared_saving(beam_world(width, prompt=40, output=100, requests=40)) == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize(("width", "low", "high"), [(2, 0.35, 0.43), (6, 0.52, 0.68)])
def test_alpaca_lengths_save_about_what_the_paper_measured(width: int, low: float, high: float) -> None:
    """Kwon et al., SOSP 2023, section 6.3, figure 15b: Alpaca (19.3 + 58.5 tokens on average, pages of 16), beam search
    saves 37.6 % with two beams and 55.2 % with six. Theirs mixes lengths and choices of a real model."""
    lengths = [(8, 30), (19, 58), (31, 87)]
    rows = [(i * 10**9, *lengths[i % 3]) for i in range(60)]
    world = beam_world(width, prompt=1, output=1)
    world.requests = requests_of(rows, beams=width)
    assert low < shared_saving(world) < high


def test_the_same_seed_draws_the_same_parents() -> None:
    first, second = (beam_world(4, prompt=20, output=60, requests=5).run()[1] for _ in range(2))
    assert first.allocator.totals == second.allocator.totals


BEAMS = """\
device: {preset: 910B3, count: 1}
model: {preset: llama-3.1-8b}
workload:
  arrivals: {process: fixed, interval: 1s}
  prompt_tokens: {dist: fixed, value: 40}
  output_tokens: {dist: fixed, value: 30}
  beam_width: 4
  requests: 4
engine: {on_oom: fail, max_model_len: 4096}
allocators: [{kind: paged_cow, page_size: 16}]
"""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("allocators.0.kind=paged", "beam_width > 1 needs paged_cow"),
        ("engine.on_oom=preempt_recompute", "beam_width > 1 needs fail or preempt_swap"),
        ("engine.scheduler=static", "beam_width > 1 needs continuous or prefill_first"),
    ],
)
def test_where_beams_cannot_advance_together_they_are_refused(change: str, message: str) -> None:
    parse_scenario(BEAMS, Path())
    with pytest.raises(InputError, match=message):
        parse_scenario(BEAMS, Path(), [change])
