"""Worked steps of real engines' schedulers: who computes how many tokens in which step.

Steps are spelled ``"800 224 0"``: tokens of each request in the order of arrival.
"""

from collections.abc import Iterator

from simulator.serving.sequence import Outcome, State
from simulator.validating.check import Check, Source
from simulator.validating.desk import Desk

FAMILY = "scheduler"
NOTES = (
    "Inputs and results are those of the engines' own test suites (facts; no code was taken), worked again by hand.",
)
_V1 = "vLLM v1 tests/v1/core/test_scheduler.py"
_V0 = "vLLM 0.6.3 tests/core/test_scheduler.py"


def checks() -> Iterator[Check]:
    """vLLM v1, vLLM v0, cann-recipes, nano-vllm."""
    yield from _budget()
    yield from _preemption()
    yield from _admission()
    yield from _v0()
    yield from _v0_memory()
    yield from _others()


def _budget() -> Iterator[Check]:
    source = Source(FAMILY, "budget", _V1)
    desk = Desk(blocks=10_000, profile="vllm-0.11", max_num_batched_tokens=1024, long_prefill_token_threshold=400)
    desk.add(800, 800, 800)
    expected = "400 400 224; 400 400 224; 1 1 352; 1 1 1"
    yield source.exact("threshold", "three prompts of 800, threshold 400", expected=expected, got=desk.steps(4))
    for profile, first in (("vllm-0.33", "1024"), ("vllm-0.11", "400")):
        desk = Desk(blocks=10_000, profile=profile, max_num_batched_tokens=1024, long_prefill_token_threshold=400)
        desk.add(2000)
        yield source.exact(f"alone-{profile}", f"{profile}: a prompt of 2,000 alone", expected=first, got=desk.step())
    for chunked, expected in ((True, "800 224 0 0; 1 576 10 0"), (False, "800 0 0 0; 1 800 10 0")):
        desk = Desk(
            blocks=10_000, profile="vllm-0.11", max_num_batched_tokens=1024, max_num_seqs=3, max_model_len=1024,
            enable_chunked_prefill=chunked,
        )  # fmt: skip
        desk.add(800, 800, 10, 10)
        what = "with chunks" if chunked else "whole prompts, nobody overtakes"
        yield source.exact(f"order-{chunked}".lower(), what, expected=expected, got=desk.steps(2))
    desk = Desk(
        blocks=10_000, profile="vllm-0.33", max_num_batched_tokens=1024, long_prefill_token_threshold=100,
        adaptive_long_prefill_threshold=True,
    )  # fmt: skip
    desk.add(2000, 10)
    what = "prompts of 2,000 and 10, threshold 100 raised to a fair share"
    yield source.exact("fair-share", what, expected="512 10", got=desk.step())
    desk = Desk(blocks=1000, profile="vllm-0.33", max_num_batched_tokens=64)
    desk.add(50)
    first = desk.step()
    desk.add(100)
    got = f"{first}; {desk.steps(2)}"
    yield source.exact("running-first", "running requests before waiting ones", expected="50; 1 63; 1 37", got=got)


def _preemption() -> Iterator[Check]:
    source = Source(FAMILY, "preemption", f"{_V1}::test_preempt_during_execution")
    desk = Desk(blocks=11, profile="vllm-0.11", max_num_batched_tokens=160)
    _, second = desk.add(80, 80)
    yield source.exact(
        "last-admitted", "two prompts of 5 blocks in 10", expected="80 80; 1 0", got=f"{desk.step()}; {desk.begin()}"
    )
    front = desk.scheduler.waiting[0] is second and second.computed_tokens == 0
    yield source.holds("front", "the victim waits in front, with nothing computed", front, grade="exact")
    yield source.exact("free", "free blocks after it: 10 less 6", expected=4, got=desk.allocator.free_pages())
    yield from _priority()
    source = Source(FAMILY, "preemption", "vLLM v1 sched/scheduler.py: no admission in a step that preempted")
    desk = Desk(blocks=11, profile="vllm-0.11", max_num_batched_tokens=200, max_num_seqs=3)
    _, second = desk.add(70, 80)
    first = desk.step()
    desk.add(10)
    got = f"{first}; {desk.begin()}"
    yield source.exact(
        "no-admission", "the last one preempts itself, a short one waits", expected="70 80; 1 0 0", got=got
    )
    yield source.holds(
        "before-new", "it comes back before those that never ran", desk.scheduler.waiting[0] is second, grade="exact"
    )


def _priority() -> Iterator[Check]:
    source = Source(FAMILY, "preemption", f"{_V1}::test_priority_scheduling_preemption")
    desk = Desk(blocks=6, profile="vllm-0.33", max_num_batched_tokens=100, scheduling_policy="priority")
    desk.add(32, priority=5)
    first = desk.step()
    desk.add(32, priority=0)
    got = f"{first}; {desk.step()}; {desk.begin()}"
    what = "5 blocks: a more urgent prompt a step later, the less urgent one is preempted for its third block"
    yield source.exact("priority", what, expected="32; 1 32; 0 1", got=got)


def _admission() -> Iterator[Check]:
    source = Source(FAMILY, "admission", "vLLM v1: scheduler_reserve_full_isl since 0.33; first chunk only in 0.11")
    for profile, admitted in (("vllm-0.33", "1 0"), ("vllm-0.11", "1 95")):
        desk = Desk(blocks=21, profile=profile, max_num_batched_tokens=96)
        desk.add(64)
        desk.step()
        desk.add(272)
        yield source.exact(profile, f"{profile}: 17 blocks asked of 15 free", expected=admitted, got=desk.step())
    source = Source(FAMILY, "admission", "vLLM v1 allocate_slots: the pool less its null block")
    desk = Desk(blocks=5, profile="vllm-0.33", max_num_batched_tokens=64)
    desk.add(64, 16, output=1)
    yield source.exact("whole-pool", "a prompt of the whole pool runs alone", expected="64 0; 0 16", got=desk.steps(2))
    source = Source(FAMILY, "admission", "vLLM 0.33: the watermark holds only beside something that runs")
    desk = Desk(blocks=21, block_size=4, profile="vllm-0.33", watermark=0.5, max_num_batched_tokens=400)
    desk.add(72, output=1)
    yield source.exact("watermark-idle", "a prompt of nine tenths of an empty pool", expected="72", got=desk.step())
    source = Source(
        FAMILY, "admission", "vllm issue 37307, FreeToken thread 111: a prompt that can never fit is refused"
    )
    desk = Desk(blocks=8209, block_size=1, profile="generic", max_model_len=20_000, max_num_batched_tokens=20_000)
    desk.add(7100, 9000)
    yield source.exact(
        "never",
        "outcome of 9,000 tokens in 8,209 slots",
        expected="too_large",
        got=Outcome(desk.ledger.outcome[1]).name,
    )


def _old(**keys: object) -> Desk:
    base = {"block_size": 4, "profile": "vllm-0.6", "scheduler": "prefill_first", "max_num_batched_tokens": 64}
    return Desk(**{**base, **keys})  # type: ignore[arg-type]


def _v0() -> Iterator[Check]:
    source = Source(FAMILY, "v0", _V0)
    desk = _old(blocks=8)
    desk.add(4, 4, 4, 4)
    yield source.exact("simple", "four prompts of 4, then decode", expected="4 4 4 4; 1 1 1 1", got=desk.steps(2))
    desk = _old(blocks=2)
    first, _ = desk.add(4, 4, output=4)
    got = desk.steps(2)
    desk.scheduler.end(first, Outcome.timed_out, desk.now)
    got = f"{got}; {desk.step()}"
    yield source.exact("abort", "preempted, then prompt and output computed again", expected="4 4; 1 0; 0 5", got=got)
    desk = _old(blocks=1000, max_num_seqs=2, max_num_batched_tokens=1000)
    desk.add(60, 60, 60)
    yield source.exact("seats", "two seats, three prompts of 60", expected="60 60 0", got=desk.step())
    desk = _old(blocks=1000, max_model_len=30, max_num_batched_tokens=1000)
    (sequence,) = desk.add(60)
    yield source.holds(
        "too-long", "a prompt above max_model_len is not queued", sequence.state is State.DONE, grade="exact"
    )
    source = Source(FAMILY, "v0-chunked", "vLLM 0.6.3 tests/core/test_chunked_prefill_scheduler.py")
    desk = _old(blocks=32, scheduler="continuous")
    desk.add(60, 60)
    yield source.exact("chunk", "two prompts of 60, budget 64", expected="60 4; 1 56", got=desk.steps(2))
    for longest, expected in ((64, "32"), (32, "0")):
        desk = _old(blocks=100, scheduler="continuous", max_num_batched_tokens=32, max_model_len=longest)
        desk.add(48, output=1)
        what = f"a prompt of 48, budget 32, max_model_len {longest}"
        yield source.exact(f"limit-{longest}", what, expected=expected, got=desk.step())


def _v0_memory() -> Iterator[Check]:
    text = "vLLM 0.6.3 tests/core/block/test_block_manager.py::test_can_allocate_seq_group"
    source = Source(FAMILY, "watermark", text)
    for blocks in (8, 40, 80):
        for watermark in (0.0, 0.5):
            wrong = sum(
                _never(blocks, watermark, need) != (blocks - need < int(watermark * blocks))
                for need in range(1, blocks)
            )
            what = f"prompt sizes judged wrongly, {blocks} blocks, watermark {watermark}"
            yield source.exact(f"{blocks}-{watermark}", what, expected=0, got=wrong)
    source = Source(FAMILY, "watermark", "vLLM 0.6.3: the watermark binds admission, not decoding")
    desk = _old(blocks=20, watermark=0.2, max_num_batched_tokens=400)
    _, second = desk.add(40, 28, output=30)
    got = desk.step()
    desk.scheduler.end(second, Outcome.timed_out, desk.now)
    desk.add(24, output=30)
    got = f"{got}; {desk.step()}"
    yield source.exact("later", "17 blocks would leave 3 of 20, 16 leave 4", expected="40 0; 0 0 24", got=got)
    desk.steps(5)
    what = "blocks left after five decode steps of both"
    yield source.exact("decode", what, expected=0, got=desk.allocator.free_pages())
    source = Source(FAMILY, "watermark", "vLLM 0.6.3 can_append_slots: a free block for each block touched")
    what = "then the last is preempted although its page has room"
    yield source.exact("append", what, expected="1 0 0", got=desk.step())


def _never(blocks: int, watermark: float, need: int) -> bool:
    desk = _old(blocks=blocks, watermark=watermark, max_num_batched_tokens=4096)
    (sequence,) = desk.add(4 * need, output=1)
    return sequence.state is State.DONE


def _others() -> Iterator[Check]:
    source = Source(FAMILY, "cann-recipes", "hicann/cann-recipes-infer: need <= free - ceil(64 / 128) x live requests")
    for need, admitted in ((90, True), (91, False)):
        desk = Desk(
            blocks=111, block_size=128, profile="cann-recipes", scheduler="prefill_first", max_model_len=20_000,
            max_num_batched_tokens=20_000,
        )  # fmt: skip
        desk.add(*[8] * 10)
        desk.step()
        desk.add(need * 128)
        fits = desk.step().split()[10] != "0"
        yield source.exact(f"{need}", f"{need} blocks beside ten live requests, 100 free", expected=admitted, got=fits)
    source = Source(FAMILY, "nano-vllm", "nano-vllm scheduler: only the first prompt of a prefill step is chunked")
    desk = Desk(blocks=100, scheduler="prefill_first", max_num_batched_tokens=100)
    desk.add(120, 80)
    yield source.exact("chunk", "prompts of 120 and 80, budget 100", expected="100 0; 20 80", got=desk.steps(2))
