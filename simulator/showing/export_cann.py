"""Settings of cann-recipes-infer: the blocks of its YAML that concern memory and batching.

Names and defaults: ``executor/core/config/inference_config.py``; blocks of 128 to 512 tokens in steps of 128:
FusedInferAttentionScore, which computes its prefill.
"""

import math

from simulator.showing.export_base import Export, Refusals, Setting, Wanted

_BLOCK_SIZES = (128, 256, 384, 512)
_RESERVED_TOKENS = 64


def cann_export(want: Wanted) -> Export:
    """The YAML. Raises ``InputError`` with everything that the executor does not accept."""
    _check(want)
    parallel, schedule = _parallel(want), _schedule(want)
    text = "\n".join(["parallel_config:", *map(_line, parallel), "scheduler_config:", *map(_line, schedule)])
    return Export(engine="cann-recipes", settings=(*parallel, *schedule), text=text, notes=tuple(_notes(want)))


def _check(want: Wanted) -> None:
    engine, refusals = want.scenario.engine, Refusals("cann-recipes", want.index)
    size = want.page_tokens
    shares = engine.decode_context_parallel_size
    refusals.unless(shares == 1, "engine.decode_context_parallel_size", "divides no contexts", [1])
    refusals.unless(size in _BLOCK_SIZES, ".page_size", f"has no blocks of {size} tokens", _BLOCK_SIZES)
    refusals.unless(not want.prefix_caching, ".enable_prefix_caching", "shares no prefixes", ["false"])
    refusals.unless(not engine.on_oom.startswith("preempt"), "engine.on_oom", "preempts nobody", ("fail", "wait"))
    refusals.unless(engine.pipeline_parallel_size == 1, "engine.pipeline_parallel_size", "has no pipeline", [1])
    tokens = engine.max_num_batched_tokens
    refusals.unless(
        tokens >= want.longest_prompt,
        "engine.max_num_batched_tokens",
        f"refuses prompts above max_prefill_tokens, and the longest has {want.longest_prompt} tokens",
    )
    # One block is the null block, and a batch of prompts must fit with one token to spare.
    needed = (want.max_pages - 1) * size - 1
    refusals.unless(
        needed >= tokens,
        "engine.max_num_batched_tokens",
        f"{want.max_pages} blocks admit {needed} prompt tokens",
    )
    refusals.check()


def _parallel(want: Wanted) -> list[Setting]:
    tp = want.scenario.engine.tensor_parallel_size
    return [
        Setting(name="world_size", value=tp, comment="NPUs of one instance"),
        Setting(name="attn_tp_size", value=tp, comment="attention is split over all of them"),
    ]


def _schedule(want: Wanted) -> list[Setting]:
    engine = want.scenario.engine
    reserved = engine.reserved_tokens_per_request
    return [
        Setting(name="batch_size", value=engine.max_num_seqs, comment="decoding requests, of all ranks"),
        Setting(name="max_new_tokens", value=want.longest_output, comment="longest output of the scenario"),
        Setting(name="max_prefill_tokens", value=engine.max_num_batched_tokens, comment="prompt tokens of a batch"),
        Setting(name="mem_fraction_static", value=_fraction(want), comment=f"leaves {want.max_pages} blocks"),
        Setting(name="block_size", value=want.page_tokens, comment="tokens of a block"),
        Setting(
            name="num_reserved_decode_tokens",
            value=_RESERVED_TOKENS if reserved is None else reserved,
            comment="kept free for each running request",
        ),
    ]


def _fraction(want: Wanted) -> float:
    """The share of the card at which the pool has the wanted pages: blocks are not an option there."""
    budget = want.scenario.budget
    used = budget.weights_bytes_per_device + budget.activation_bytes + budget.runtime_bytes + budget.graph_bytes
    share = (used + want.max_pages * want.page_bytes) / budget.usable_bytes
    return min(1.0, math.ceil(share * 1e4) / 1e4)


def _notes(want: Wanted) -> list[str]:
    return [] if want.max_pages else ["there is no room for a single block"]


def _line(setting: Setting) -> str:
    comment = f"  # {setting.comment}" if setting.comment else ""
    return f"  {setting.name}: {setting.value}{comment}"
