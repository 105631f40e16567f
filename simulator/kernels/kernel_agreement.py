"""How well the closed form agrees with the played launch, over random launches: for validation and its plot.

What holds over such sweeps (launch floor included on both sides): every launch within 2 % when every context is
known; from sums and the longest context, which is what the engine has, every launch with two tile buffers or more or
with equal contexts within 2 %, and with one buffer all but about one mixed launch in a hundred (worst seen: 9 %).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simulator.device import Device
from simulator.kernel import PagedKernel
from simulator.kernels.kernel_cycles import simulate_launch
from simulator.kernels.tiles import AttentionShape, KernelOptions, Layout, Prefetch, TableMode
from simulator.units import ceil_div

PAGE_SIZES = (8, 16, 32, 64, 128, 256, 512, 1024)
MOST_CONTEXT = 131072
TABLES: tuple[TableMode, ...] = ("hbm", "dcache", "l1")
PREFETCHES: tuple[Prefetch, ...] = ("none", "next", "all")
LAYOUTS: tuple[Layout, ...] = ("token_major", "head_major")


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """One random launch: seconds played and by both closed forms, the launch floor included in all three.

    ``sums_s`` knows sequences, tokens, pages and the longest context (what the engine knows), ``exact_s`` every
    context. ``buffers`` is how many tiles are in flight on a core.
    """

    device: str
    buffers: int
    page_tokens: int
    sequences: int
    tokens: int
    played_s: float
    sums_s: float
    exact_s: float

    @property
    def sums_error(self) -> float:
        """Relative error of the form that knows sums."""
        return self.sums_s / self.played_s - 1.0

    @property
    def exact_error(self) -> float:
        """Relative error of the form that knows every context."""
        return self.exact_s / self.played_s - 1.0


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
    )
    return PagedKernel(devices[int(rng.integers(len(devices)))], shape, page_tokens=page, options=options), contexts


def agreement(
    rng: np.random.Generator, devices: Sequence[Device], *, count: int, mixed: bool, most_pages: int = 1000
) -> list[Agreement]:
    """``count`` random launches; with ``mixed`` every sequence has its own context. Tables are scattered."""
    found = []
    for _ in range(count):
        kernel, contexts = random_launch(rng, devices, mixed=mixed, most_pages=most_pages)
        page, floor = kernel.plan.page_tokens, kernel.device.launch_s
        pages = sum(ceil_div(context, page) for context in contexts)
        found.append(
            Agreement(
                device=kernel.device.name,
                buffers=kernel.plan.buffers,
                page_tokens=page,
                sequences=len(contexts),
                tokens=sum(contexts),
                played_s=floor + simulate_launch(kernel, contexts, scattered_tables(contexts, page)).seconds,
                sums_s=floor + kernel.seconds(len(contexts), sum(contexts), pages, max(contexts)),
                exact_s=floor + kernel.seconds_of(contexts),
            )
        )
    return found


def scattered_tables(contexts: Sequence[int], page_tokens: int) -> list[list[int]]:
    """Page tables in which no two pages are adjacent, so that no burst spans two."""
    tables, page_id = [], 0
    for context in contexts:
        count = ceil_div(context, page_tokens)
        tables.append(list(range(page_id, page_id + 2 * count, 2)))
        page_id += 2 * count
    return tables


def _log_uniform(rng: np.random.Generator, high: int) -> int:
    return int(math.exp(rng.uniform(0, math.log(high))))
