"""Loss systems and demand: Erlang B, Kaufman and Roberts, Campbell, the page's internal waste."""

import math
from collections.abc import Callable, Iterator

import numpy as np

from simulator.serving.sequence import Outcome
from simulator.traffic.traces import TraceArrivals, load_arrivals
from simulator.validating.bench import (
    STEP_NS,
    TOKEN_BYTES,
    Floats,
    Ints,
    contiguous,
    draws,
    lognormal_lengths,
    paged,
    poisson,
    replay,
    requests_of,
)
from simulator.validating.check import Check, Source
from simulator.validating.queues import erlang_b, erlang_c, kaufman_roberts, lost_of

FAMILY = "theory"
NOTES = (
    "Simulated means are accepted within four standard errors, which come from batch means. Runs are those of the "
    "shipped engine and of its demand process (`engine.scheduler: replay`).",
)
_MEAN_TOKENS = 2000


def checks() -> Iterator[Check]:
    """Tabulated values, then simulations of each."""
    yield from _tables()
    for slots, load, count in ((7, 5.0, 12_000),):
        yield from _erlang_b(slots, load, count)
    yield from _kaufman_roberts(20, [(4, 1), (2, 4)], 15_000)
    yield from _contiguous_classes()
    yield from _campbell()
    yield from _page_waste()


def long_checks() -> Iterator[Check]:
    """Larger systems."""
    yield from _erlang_b(16, 12.0, 150_000)
    yield from _kaufman_roberts(64, [(20, 1), (5, 4), (1, 16)], 200_000)


def _tables() -> Iterator[Check]:
    source = Source(FAMILY, "tables", "recursions of Erlang, Kaufman and Roberts, evaluated independently")
    for servers, load, lost in (
        (7, 7, 0.248871),
        (7, 5, 0.120519),
        (16, 12, 0.060413),
        (64, 60, 0.060363),
        (256, 240, 0.017274),
    ):
        yield source.near(
            f"b-{servers}-{load}",
            f"Erlang B({servers}, {load})",
            expected=lost,
            got=erlang_b(servers, load),
            within=6e-7,
            grade="exact",
        )
    for servers, load, waits in ((7, 5, 0.324150), (16, 12, 0.204574), (64, 60, 0.506866)):
        yield source.near(
            f"c-{servers}-{load}",
            f"Erlang C({servers}, {load})",
            expected=waits,
            got=erlang_c(servers, load),
            within=6e-7,
            grade="exact",
        )
    for pages, classes, blocking, mean in (
        (20, [(4.0, 1), (2.0, 4)], (0.026175, 0.136886), 10.8002),
        (64, [(20.0, 1), (5.0, 4), (1.0, 16)], (0.023770, 0.099693, 0.454530), 46.2583),
    ):
        found, used = kaufman_roberts(pages, classes)
        for index, (expected, got) in enumerate(zip(blocking, found, strict=True)):
            yield source.near(
                f"kr-{pages}-{index}",
                f"Kaufman-Roberts, {pages} pages, class {index}",
                expected=expected,
                got=got,
                within=6e-7,
                grade="exact",
            )
        yield source.near(
            f"kr-{pages}-mean",
            f"Kaufman-Roberts, {pages} pages, mean in use",
            expected=mean,
            got=used,
            within=6e-5,
            grade="exact",
        )


def _exponential(rng: np.random.Generator, mean: float, count: int) -> Ints:
    return np.maximum(1, np.ceil(rng.exponential(mean, count))).astype(np.int64)


def _constant(rng: np.random.Generator, mean: float, count: int) -> Ints:
    del rng
    return np.full(count, int(mean), np.int64)


def _spread(rng: np.random.Generator, mean: float, count: int) -> Ints:
    return lognormal_lengths(rng, mean, 2.0, count)


_LAWS: dict[str, Callable[[np.random.Generator, float, int], Ints]] = {
    "exponential": _exponential,
    "constant": _constant,
    "lognormal (CV 2)": _spread,
}


def _lost(outcomes: object) -> Floats:
    return np.asarray(np.array(outcomes) != Outcome.completed, np.float64)


def _erlang_b(slots: int, load: float, count: int) -> Iterator[Check]:
    """A page, or a range of the longest sequence, holds a request from its first token to its last."""
    source = Source(FAMILY, f"erlang-b-{slots}", f"Erlang B({slots}, {load:g}); insensitive to the holding law")
    blocking = erlang_b(slots, load)
    for index, (law, draw) in enumerate(_LAWS.items()):
        rng = draws(10 + index)
        outputs = draw(rng, _MEAN_TOKENS, count)
        arrivals = poisson(rng, load / (_MEAN_TOKENS * STEP_NS) * 1e9, count)
        longest = int(outputs.max()) + 1
        requests = requests_of(arrivals, np.ones(count, np.int64), outputs)
        pools = {"paged": paged(slots, longest), "contiguous": contiguous(slots * longest, longest)}
        for kind, pool in pools.items():
            run = replay(requests, pool, max_model_len=longest)
            name = f"{kind}-{law.split()[0]}"
            yield source.mean(
                name, f"share lost, {kind} slots, {law} holding", expected=blocking, samples=_lost(run.ledger.outcome)
            )
            yield source.exact(
                f"{name}-events",
                f"requests lost, {kind} slots, {law} holding, against an event list of the same draws",
                expected=lost_of(arrivals, outputs * STEP_NS, slots),
                got=int(_lost(run.ledger.outcome).sum()),
            )
            used = run.recorder.allocated.total / (longest * TOKEN_BYTES) / run.ended_ns
            yield source.near(
                f"{name}-used",
                f"mean slots in use, {kind}, {law}",
                expected=load * (1 - blocking),
                got=used,
                rel=0.03,
                grade="statistical",
            )


def _two_sizes(rng: np.random.Generator, classes: list[tuple[float, int]], count: int) -> tuple[Ints, Ints, Ints, Ints]:
    """Arrivals, prompts and outputs of classes ``(load, pages of 1,000 tokens)``, and the class of each request."""
    loads = np.array([load for load, _ in classes])
    kinds = rng.choice(len(classes), count, p=loads / loads.sum())
    pages = np.array([size for _, size in classes])[kinds]
    outputs = rng.integers(100, 301, count)
    return poisson(rng, loads.sum() / (200 * STEP_NS) * 1e9, count), pages * 1000 - 500, outputs, kinds


def _kaufman_roberts(pages: int, classes: list[tuple[float, int]], count: int) -> Iterator[Check]:
    source = Source(FAMILY, f"kaufman-roberts-{pages}", "Kaufman 1981, Roberts 1981; pages reserved in full")
    arrivals, prompts, outputs, kinds = _two_sizes(draws(20), classes, count)
    run = replay(requests_of(arrivals, prompts, outputs), paged(pages, 1000), max_model_len=20_000)
    blocking, mean = kaufman_roberts(pages, classes)
    lost = _lost(run.ledger.outcome)
    for index, expected in enumerate(blocking):
        size = classes[index][1]
        yield source.mean(
            f"class-{size}", f"share lost of requests of {size} pages", expected=expected, samples=lost[kinds == index]
        )
    used = run.recorder.allocated.total / (1000 * TOKEN_BYTES) / run.ended_ns
    yield source.near("used", "mean pages in use", expected=mean, got=used, rel=0.03, grade="statistical")


def _contiguous_classes() -> Iterator[Check]:
    classes: list[tuple[float, int]] = [(4, 1), (2, 4)]
    arrivals, prompts, outputs, kinds = _two_sizes(draws(21), classes, 15_000)
    pool = contiguous(20_000, 20_000, reserve="exact", page_size=1000)
    run = replay(requests_of(arrivals, prompts, outputs), pool, max_model_len=20_000)
    lost = _lost(run.ledger.outcome)
    source = Source(FAMILY, "first-fit", "an independent simulation of first fit: 0.2089")
    yield source.mean(
        "large", "share lost of requests of 4 units, contiguous", expected=0.2089, samples=lost[kinds == 1], slack=0.003
    )
    source = Source(FAMILY, "first-fit", "Kaufman-Roberts 0.136886 is a lower bound for the large class")
    large = float(lost[kinds == 1].mean())
    yield source.holds("bound", "ranges lose more large requests than pages do", large > 0.136886, seen=large)
    yield source.holds("cause", "fragmentation is among the causes", run.ledger.oom_events["fragmentation"] > 0)


def _campbell() -> Iterator[Check]:
    """Mean and variance of the tokens that the Azure conversation lengths ask for, Poisson arrivals at 5.53/s."""
    source = Source(FAMILY, "campbell", "Campbell's theorem over the Azure conversation length pairs, 30 ms a token")
    rows = load_arrivals(TraceArrivals(process="trace", path="azure_conv"), seed=0)
    step_s, rate, count = 0.03, 5.53, 8000
    p, o = rows.prompt_tokens.astype(float), rows.output_tokens.astype(float)
    mean = rate * step_s * float(np.mean(p * o + o * (o + 1) / 2))
    variance = rate * step_s * float(np.mean(o * p * p + p * o * (o + 1) + o * (o + 1) * (2 * o + 1) / 6))
    live = rate * step_s * float(o.mean())
    for name, expected, got, within in (
        ("mean", 42_993.4, mean, 0.06),
        ("sd", 8400.8, math.sqrt(variance), 0.06),
        ("live", 35.026, live, 6e-4),
    ):
        yield source.near(
            f"{name}-formula", f"closed form: {name}", expected=expected, got=got, within=within, grade="exact"
        )
    rng = draws(30)
    picked = rng.integers(0, len(p), count)
    requests = requests_of(poisson(rng, rate, count), rows.prompt_tokens[picked], rows.output_tokens[picked])
    run = replay(requests, paged(1 << 30, 16), step_ns=round(step_s * 1e9))
    timeline = run.recorder.timeline()
    steady = (timeline["time_ns"] > 40e9) & (timeline["time_ns"] < run.ledger.arrived_ns[-1])
    tokens = timeline["used_bytes"][steady] / TOKEN_BYTES
    running = timeline["running"][steady].astype(float)
    yield source.mean("mean", "mean tokens of an infinite pool", expected=mean, samples=tokens)
    yield source.mean("variance", "their variance", expected=variance, samples=(tokens - mean) ** 2)
    yield source.mean("live", "mean live requests", expected=live, samples=running)
    yield source.mean("live-variance", "their variance: a Poisson number", expected=live, samples=(running - live) ** 2)


def _page_waste() -> Iterator[Check]:
    source = Source(FAMILY, "page-waste", "(B - 1) / 2 tokens a sequence when lengths are uniform modulo B")
    for index, size in enumerate((16, 128)):
        rng = draws(40 + index)
        count = 3000
        prompts, outputs = rng.integers(1, size * 8 + 1, count), rng.integers(1, 400, count)
        run = replay(requests_of(poisson(rng, 50_000.0, count), prompts, outputs), paged(1 << 30, size))
        wasted = run.recorder.allocated.total - run.recorder.used_byte_ns
        got = wasted / TOKEN_BYTES / (run.recorder.sequence_steps * STEP_NS)
        yield source.near(
            f"{size}",
            f"tokens wasted in pages of {size}",
            expected=(size - 1) / 2,
            got=got,
            rel=0.02,
            grade="statistical",
        )
