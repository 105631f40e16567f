"""How well the closed form agrees with the played launch, over random launches: for validation and its plot.

The launch floor is on both sides: a launch never takes less, so that is what a step is charged.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simulator.device import Device
from simulator.kernel import PagedKernel
from simulator.kernels.kernel_cycles import simulate_launch
from simulator.kernels.step_load import known_lengths
from simulator.kernels.tiles import AttentionShape, KernelOptions, Layout, Prefetch, TableMode
from simulator.units import ceil_div

PAGE_SIZES = (8, 16, 32, 64, 128, 256, 512, 1024)
MOST_CONTEXT = 131072
TABLES: tuple[TableMode, ...] = ("hbm", "dcache", "l1")
PREFETCHES: tuple[Prefetch, ...] = ("none", "next", "all")
LAYOUTS: tuple[Layout, ...] = ("token_major", "head_major")
#: lengths of runs of adjacent pages; most tables are taken to be scattered
RUNS = (1, 1, 1, 2, 4, 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """One random launch: seconds played, and by the closed form.

    ``buffers`` is how many tiles are in flight on a core, ``run_pages`` how many adjacent pages one burst covers.
    ``form_s`` knows every context.
    """

    device: str
    buffers: int
    run_pages: float
    page_tokens: int
    sequences: int
    tokens: int
    floor_s: float
    played_s: float
    form_s: float

    @property
    def error(self) -> float:
        """Relative error of the closed form, the launch floor included on both sides."""
        return (self.floor_s + self.form_s) / (self.floor_s + self.played_s) - 1.0

    @property
    def bare_error(self) -> float:
        """Relative error without the launch floor."""
        return self.form_s / self.played_s - 1.0


def random_launch(
    rng: np.random.Generator, devices: Sequence[Device], *, mixed: bool, most_pages: int
) -> tuple[PagedKernel, list[int]]:
    """A kernel and contexts: page 8..1024, contexts 1..131072 (log-uniform), up to 256 sequences, many shapes.

    Launches of more than ``most_pages`` pages over all heads are drawn again: a played page costs about 0.1 ms.
    """
    while True:
        page = int(rng.choice(PAGE_SIZES))
        heads, group = int(rng.choice([1, 2, 4, 8, 16, 32])), int(rng.choice([1, 2, 4, 7, 8, 16]))
        batch, context = _log_uniform(rng, 256), _log_uniform(rng, MOST_CONTEXT)
        contexts = [_log_uniform(rng, MOST_CONTEXT) if mixed else context for _ in range(batch)]
        if sum(ceil_div(context, page) for context in contexts) * heads <= most_pages:
            break
    dim = int(rng.choice([64, 96, 128, 192, 256]))
    shape = AttentionShape(kv_heads=heads, query_heads=heads * group, head_dim=dim, v_head_dim=dim)
    options = KernelOptions(
        table=TABLES[rng.integers(len(TABLES))],
        prefetch=PREFETCHES[rng.integers(len(PREFETCHES))],
        layout=LAYOUTS[rng.integers(len(LAYOUTS))],
        run_pages=RUNS[rng.integers(len(RUNS))],
    )
    return PagedKernel(devices[int(rng.integers(len(devices)))], shape, page_tokens=page, options=options), contexts


def agreement(
    rng: np.random.Generator, devices: Sequence[Device], *, count: int, mixed: bool, most_pages: int = 1000
) -> list[Agreement]:
    """``count`` random launches; with ``mixed`` every sequence has its own context."""
    found = []
    for _ in range(count):
        kernel, contexts = random_launch(rng, devices, mixed=mixed, most_pages=most_pages)
        page, lengths = kernel.plan.page_tokens, known_lengths(contexts)
        sums = len(contexts), sum(contexts), sum(ceil_div(context, page) for context in contexts)
        tables = run_tables(contexts, page, round(kernel.options.run_pages))
        found.append(
            Agreement(
                device=kernel.device.name,
                buffers=kernel.plan.buffers,
                run_pages=kernel.plan.group_pages,
                page_tokens=page,
                sequences=len(contexts),
                tokens=sum(contexts),
                floor_s=kernel.device.launch_s,
                played_s=simulate_launch(kernel, contexts, tables).seconds,
                form_s=kernel.seconds(*sums, lengths),
            )
        )
    return found


def run_tables(contexts: Sequence[int], page_tokens: int, run: int = 1) -> list[list[int]]:
    """Page tables of runs of ``run`` adjacent pages with a gap after each, so that no burst spans two runs."""
    tables, page_id = [], 0
    for context in contexts:
        count = ceil_div(context, page_tokens)
        tables.append([page_id + place + place // run for place in range(count)])
        page_id = tables[-1][-1] + 2
    return tables


def _log_uniform(rng: np.random.Generator, high: int) -> int:
    return int(math.exp(rng.uniform(0, math.log(high))))
