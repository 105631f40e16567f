"""The PagedAttention paper (SOSP'23, arXiv 2309.06180): slots, memory breakdown and batch of Orca and vLLM, sharing.

The paper's lengths are not published; they are drawn from gamma laws with its means (161.31 in, 337.99 out) and the
spread that its reservation share implies (CV of outputs 0.875). It counts what a buddy block exceeds its
reservation by among "external and others".
"""

from collections.abc import Iterator

import numpy as np

from simulator.config import EngineConfig
from simulator.engine import EngineRun
from simulator.serving.sequence import Outcome
from simulator.validating.bench import (
    NO_LIMIT,
    TOKEN_BYTES,
    Ints,
    Totals,
    after_warmup,
    at_once,
    contiguous,
    draws,
    gamma_lengths,
    lognormal_lengths,
    paged,
    powers_of_two,
    serve,
    shared_pages,
)
from simulator.validating.check import Check, Source
from simulator.validating.parts import GIB, preset_model, settings, transformer

FAMILY = "paper"
NOTES = (
    "Orca is run as the paper rebuilt it: a buddy allocator over 15,728 slots, first come first served, with more "
    "requests waiting than ever fit. Lengths have the paper's means; their law is not published, so shares differ "
    "by a few points. vLLM's published batch (30.42) is at 2 requests a second, below saturation; a saturated "
    "pool gives an upper bound of it. Beam search needs the model's beam histories and is not checked.",
)
SLOTS, LONGEST = 15_728, 2048
MEAN_PROMPT, MEAN_OUTPUT = 161.31, 337.99
_SLOT_SHARE = 15_728.64  # 12 GiB in slots of 819,200 bytes


def checks() -> Iterator[Check]:
    """Table 1, figures 2, 13 and 15."""
    yield from _slots()
    for variant in _ORCA:
        yield from _orca(*variant)
    yield from _saturated_vllm()
    yield from _sharing()
    yield from _alpaca()


def long_checks() -> Iterator[Check]:
    """The same breakdown with another law of the outputs."""
    source = Source(FAMILY, "orca-lognormal", "arXiv 2309.06180, figure 13; outputs lognormal with CV 0.845")
    for reserve, low, high in (("pow2", 9.3, 10.6), ("exact", 12.6, 14.1)):
        prompts, outputs = _lengths(lognormal_outputs=True)
        _, totals = _run_orca(reserve, prompts, outputs)
        yield source.between(reserve, "batch", low=low, high=high, got=totals.batch)


def _slots() -> Iterator[Check]:
    source = Source(FAMILY, "table-1", "arXiv 2309.06180, table 1 (12, 21 and 264 GB of KV memory)")
    rounded = "the memory is printed as 21: 20.5 to 21.5 GiB are 9.33 to 9.78 thousand slots"
    for name, model, gib, thousands, within, note in (
        ("opt-13b", preset_model("opt-13b"), 12, 15.7, 0.05, ""),
        ("66b", transformer(64, 72, hidden=9216), 21, 9.7, 0.23, rounded),
        ("175b", transformer(96, 96, hidden=12_288), 264, 60.1, 0.05, ""),
    ):
        got = gib * GIB / model.kv_bytes_per_token() / 1000
        yield source.near(
            name, "thousands of slots", expected=thousands, got=got, within=within, grade="rounding", note=note
        )
    held = contiguous(SLOTS, LONGEST, fit="buddy")
    prompts, outputs = np.full(20, 161), np.full(20, 338)
    run = serve(at_once(prompts, outputs), held, _saturating(), max_model_len=LONGEST, horizon_steps=10)
    batch = run.recorder.peak_sequences
    source = Source(FAMILY, "orca-max", "arXiv 2309.06180, figures 2 and 13")
    yield source.exact("batch", "requests of 2,048 slots at once", expected=7, got=batch)
    beyond = 100 * (1 - batch * LONGEST / _SLOT_SHARE)
    yield source.near(
        "external",
        "percent of the slots that no request can have",
        expected=8.9,
        got=beyond,
        within=0.06,
        grade="rounding",
    )


#: reservation, batch, then percent of tokens, reserved, internal, external and others, and the slack of the last
_ORCA = (
    ("max_model_len", (7.0, 7.0), 20.4, 13.3, 57.3, 8.9, 2.5),
    ("pow2", (9.3, 10.6), 26.8, 17.9, 13.6, 41.6, 7.0),
    ("exact", (12.6, 14.1), 38.2, 25.2, 0.0, 36.6, 2.5),
)
_NAMES = {"max_model_len": "Orca (Max)", "pow2": "Orca (Pow2)", "exact": "Orca (Oracle)"}


def _orca(
    reserve: str,
    batch: tuple[float, float],
    token: float,
    reserved: float,
    internal: float,
    external: float,
    slack: float,
) -> Iterator[Check]:
    name = _NAMES[reserve]
    source = Source(FAMILY, reserve.replace("_", "-"), f"arXiv 2309.06180, figures 2 and 13: {name}")
    prompts, outputs = _lengths()
    run, totals = _run_orca(reserve, prompts, outputs)
    shares = _breakdown(run, totals, reserve, prompts, outputs)
    published = (token, reserved, internal, external)
    yield source.between("batch", "mean batch", low=batch[0], high=batch[1], got=totals.batch)
    parts = ("token states", "reservation", "internal", "external and others")
    for place, (part, expected, got) in enumerate(zip(parts, published, shares, strict=True)):
        within = slack if part == "external and others" else 2.5
        yield source.near(
            part.split()[0], f"percent of the slots: {part}", expected=expected, got=got, within=within,
            curve=f"breakdown: {name}", at=place,
        )  # fmt: skip


def _saturating(**keys: object) -> EngineConfig:
    return settings(**{"on_oom": "wait", "max_num_batched_tokens": NO_LIMIT, "max_num_seqs": 1000, **keys})


def _lengths(count: int = 3000, *, lognormal_outputs: bool = False) -> tuple[Ints, Ints]:
    """Prompts and outputs of at most 2,048 tokens together, scaled so that the paper's means come out."""
    rng = draws(1)
    prompts = gamma_lengths(rng, MEAN_PROMPT, 1.0, 3 * count)
    if lognormal_outputs:
        outputs = lognormal_lengths(rng, MEAN_OUTPUT, 0.93, 3 * count)
    else:
        outputs = gamma_lengths(rng, MEAN_OUTPUT, 0.91, 3 * count)
    for _ in range(6):  # what is cut off lowers the means, so cut and scale until both fit
        fits = prompts + outputs <= LONGEST
        prompts, outputs = prompts[fits], outputs[fits]
        prompts = np.maximum(4, np.rint(prompts * (MEAN_PROMPT / prompts[:count].mean()))).astype(np.int64)
        outputs = np.maximum(4, np.rint(outputs * (MEAN_OUTPUT / outputs[:count].mean()))).astype(np.int64)
    return np.minimum(prompts, 1024)[:count], np.minimum(outputs, LONGEST - np.minimum(prompts, 1024))[:count]


def _run_orca(reserve: str, prompts: Ints, outputs: Ints) -> tuple[EngineRun, Totals]:
    def until(steps: int) -> EngineRun:
        pool = contiguous(SLOTS, LONGEST, fit="buddy", reserve=reserve)
        return serve(at_once(prompts, outputs), pool, _saturating(), max_model_len=LONGEST, horizon_steps=steps)

    return after_warmup(until, 5000, 45_000)


def _breakdown(
    run: EngineRun, totals: Totals, reserve: str, prompts: Ints, outputs: Ints
) -> tuple[float, float, float, float]:
    """Percent of the slots, averaged over time: token states, reservation, internal, external and others."""
    asked = {
        "max_model_len": np.full(len(outputs), LONGEST),
        "pow2": prompts + powers_of_two(outputs),
        "exact": prompts + outputs - 1,
    }[reserve]
    asked = np.minimum(asked, LONGEST)
    rounding = float((totals.residence_ns(run) * (powers_of_two(asked) - asked)).sum()) * TOKEN_BYTES
    used, held, beyond = totals.used, totals.held, totals.tail
    whole = _SLOT_SHARE * TOKEN_BYTES * (totals.to_ns - totals.from_ns)
    parts = used, held - used - beyond, beyond - rounding, whole - held + rounding
    token, reserved, internal, external = (100 * part / whole for part in parts)
    return token, reserved, internal, external


def _saturated_vllm() -> Iterator[Check]:
    source = Source(FAMILY, "vllm", "arXiv 2309.06180, figure 2 (blocks of 16, 1 % watermark); a saturated pool")
    prompts, outputs = _lengths(4000)
    engine = settings(profile="vllm-0.6", max_num_batched_tokens=NO_LIMIT, max_num_seqs=1000)
    requests = at_once(prompts, outputs)

    def until(steps: int) -> EngineRun:
        return serve(requests, paged(983, 16, engine), engine, max_model_len=LONGEST, horizon_steps=steps)

    run, totals = after_warmup(until, 3000, 23_000)
    used = 100 * totals.used / (_SLOT_SHARE * TOKEN_BYTES * (totals.to_ns - totals.from_ns))
    yield source.near("tokens", "percent of the slots that hold tokens", expected=96.3, got=used, within=1.5)
    yield source.holds(
        "batch",
        "a saturated batch is above the published 30.42 at 2 requests a second",
        totals.batch >= 30.42,
        seen=totals.batch,
    )
    source = Source(FAMILY, "vllm", "an independent 60-line simulation of the same saturated pool")
    yield source.between("batch-again", "mean batch", low=33.2 - 1, high=33.6 + 1, got=totals.batch)
    rate = run.ledger.preemption_count / run.ledger.ended_count
    yield source.between("preemptions", "preemptions for each request that ends", low=0.9, high=1.3, got=rate)


def _sharing() -> Iterator[Check]:
    """Blocks that parallel samples share; 'saved' is of the blocks without sharing."""
    prompts, outputs = _lengths(400)
    engine = settings(profile="vllm-0.6", max_num_batched_tokens=NO_LIMIT, max_num_seqs=64, on_oom="wait")
    published = {2: 16.2, 6: 30.5}
    for samples in (2, 4, 6):
        pool = shared_pages(200_000, 16, engine, caching=False)
        run = serve(at_once(prompts, outputs, samples=samples), pool, engine, max_model_len=LONGEST)
        assert all(outcome == Outcome.completed for outcome in run.ledger.outcome)
        entries = run.recorder.entries.total
        saved = 100 * (1 - run.recorder.allocated.total / (16 * TOKEN_BYTES) / entries)
        formula = 100 * _saving(prompts, outputs, samples)
        text = "closed form: (n-1) floor(P/B) O / (n sum of ceil((P+k)/B)), equal samples"
        yield Source(FAMILY, "sharing-theory", text).near(
            f"n{samples}",
            f"percent of blocks saved by {samples} samples",
            expected=formula,
            got=saved,
            within=0.2,
            grade="approximate",
        )
        if samples in published:
            note = (
                "n = 6 is low by 3 points also in theory: the paper's samples differ in length" if samples == 6 else ""
            )
            yield Source(FAMILY, "sharing", "arXiv 2309.06180, figure 15 (ShareGPT, ends of the range)").near(
                f"n{samples}", f"percent of blocks saved by {samples} samples", expected=published[samples], got=saved,
                within=0.5 if samples == 2 else 3.5, note=note,
            )  # fmt: skip


def _alpaca() -> Iterator[Check]:
    """Short prompts share little: mean lengths of the paper's Alpaca, outputs as an exponential law spreads them."""
    prompts, outputs = gamma_lengths(draws(123), 19.31, 0.6, 1000), gamma_lengths(draws(124), 58.45, 1.0, 1000)
    engine = settings(profile="vllm-0.6", max_num_batched_tokens=NO_LIMIT, max_num_seqs=64, on_oom="wait")
    source = Source(FAMILY, "sharing-alpaca", "arXiv 2309.06180, figure 15 (Alpaca; its law of lengths is not given)")
    for samples, published in ((2, 6.09), (4, 8.53), (6, 9.79)):
        pool = shared_pages(200_000, 16, engine, caching=False)
        run = serve(at_once(prompts, outputs, samples=samples), pool, engine, max_model_len=LONGEST)
        saved = 100 * (1 - run.recorder.allocated.total / (16 * TOKEN_BYTES) / run.recorder.entries.total)
        what = f"percent of blocks saved by {samples} samples"
        yield source.near(
            f"n{samples}", what, expected=published, got=saved, within=2.0,
            note="outputs with a CV of 1.2 in place of 1 would give 5.9, 8.9 and 9.9",
        )  # fmt: skip


def _saving(prompts: Ints, outputs: Ints, samples: int) -> float:
    """Shared blocks over blocks without sharing, sums over requests and over token steps."""
    shared = float((prompts // 16 * outputs).sum())
    held = sum(
        int((-(-np.arange(p + 1, p + o + 1) // 16)).sum())
        for p, o in zip(prompts.tolist(), outputs.tolist(), strict=True)
    )
    return (samples - 1) * shared / (samples * held)
