"""Settings of MindIE: the parts of its service ``config.json`` that concern memory and batching.

Names, units and ranges: MindIE-LLM's table of service parameters; blocks of 16 tokens times a whole number with
``head_dim * block <= 16384``: ATB's PagedAttention operator.
"""

import json
from typing import Any

from simulator.showing.export_base import Export, Refusals, Setting, Value, Wanted
from simulator.units import ceil_div

_GIB = 2**30
_MOST_TOKENS = 4_194_304
_MOST_ELEMENTS = 128 * 128


def mindie_export(want: Wanted) -> Export:
    """``config.json``, the keys to change. Raises ``InputError`` with everything that MindIE does not accept."""
    _check(want)
    deploy, model, schedule = _deploy(want), _model(want), _schedule(want)
    document = {
        "BackendConfig": {
            "npuDeviceIds": [list(range(want.scenario.engine.tensor_parallel_size))],
            "ModelDeployConfig": {**_plain(deploy), "ModelConfig": [_plain(model)]},
            "ScheduleConfig": {"templateName": "Standard_LLM", **_plain(schedule)},
        }
    }
    settings = (*deploy, *model, *schedule)
    comments = [f"{one.name}: {one.comment}" for one in settings if one.comment]
    return Export(
        engine="mindie",
        settings=settings,
        text=json.dumps(document, indent=2, ensure_ascii=False),
        notes=(*comments, *_notes(want)),
    )


def _check(want: Wanted) -> None:
    engine, refusals = want.scenario.engine, Refusals("mindie", want.index)
    size = want.page_tokens
    shares = engine.decode_context_parallel_size
    refusals.unless(shares == 1, "engine.decode_context_parallel_size", "divides no contexts", [1])
    refusals.unless(size <= 128 and size % 16 == 0, ".page_size", f"has no blocks of {size} tokens", range(16, 129, 16))
    refusals.unless(
        size * want.head_dim <= _MOST_ELEMENTS,
        ".page_size",
        f"head_dim {want.head_dim} * {size} tokens exceed the operator's {_MOST_ELEMENTS}",
    )
    refusals.unless(engine.max_num_seqs <= 5000, "engine.max_num_seqs", "maxBatchSize is at most 5000")
    refusals.unless(
        engine.max_num_batched_tokens <= _MOST_TOKENS, "engine.max_num_batched_tokens", f"at most {_MOST_TOKENS}"
    )
    refusals.unless(
        engine.max_num_batched_tokens >= _longest_input(want),
        "engine.max_num_batched_tokens",
        f"maxPrefillTokens must hold the longest prompt ({_longest_input(want)} tokens)",
    )
    refusals.unless(engine.pipeline_parallel_size == 1, "engine.pipeline_parallel_size", "has no pipeline", [1])
    refusals.unless(
        engine.kv_cache_dtype in ("auto", "int8"),
        "engine.kv_cache_dtype",
        "takes it from the weights",
        ("auto", "int8"),
    )
    refusals.unless(engine.scheduler in ("continuous", "prefill_first"), "engine.scheduler", "has no such scheduler")
    refusals.check()


def _longest_input(want: Wanted) -> int:
    return min(want.longest_prompt, want.max_model_len - 1)


def _deploy(want: Wanted) -> list[Setting]:
    return [
        Setting(name="maxSeqLen", value=want.max_model_len, comment="tokens, prompt and output"),
        Setting(name="maxInputTokenLen", value=_longest_input(want), comment="the longest prompt of the scenario"),
    ]


def _model(want: Wanted) -> list[Setting]:
    engine = want.scenario.engine
    swap = max(1, ceil_div(engine.swap_bytes, _GIB)) if engine.on_oom.startswith("preempt") else 0
    pool, budget = want.max_pages * want.page_bytes, want.scenario.budget.kv_bytes_available
    whole = ceil_div(pool, _GIB)
    fits = whole * _GIB <= budget
    # Whole GB only: rounded up, unless that is more than there is.
    size = whole if fits else max(1, pool // _GIB)
    rounding = "rounded up" if fits else "rounded down: more does not fit"
    return [
        Setting(name="modelName", value=want.scenario.loaded_model.name),
        Setting(name="worldSize", value=engine.tensor_parallel_size, comment="NPUs"),
        Setting(name="npuMemSize", value=size, comment=f"GB of KV on each NPU, {want.max_pages} blocks, {rounding}"),
        Setting(name="cpuMemSize", value=swap, comment="GB of host memory for preempted requests"),
    ]


def _schedule(want: Wanted) -> list[Setting]:
    engine = want.scenario.engine
    mixes = engine.scheduler == "continuous" and engine.enable_chunked_prefill
    preempted = engine.max_num_seqs if engine.on_oom.startswith("preempt") else 0
    return [
        Setting(name="templateType", value="Mix" if mixes else "Standard", comment="Mix: chunked prefill (SplitFuse)"),
        Setting(name="cacheBlockSize", value=want.page_tokens, comment="tokens of a block"),
        Setting(name="maxBatchSize", value=engine.max_num_seqs, comment="decoding requests"),
        Setting(name="maxPrefillBatchSize", value=engine.max_num_seqs),
        Setting(name="maxPrefillTokens", value=engine.max_num_batched_tokens, comment="prompt tokens of a batch"),
        Setting(name="maxIterTimes", value=min(want.longest_output, want.max_model_len), comment="longest output"),
        Setting(name="maxPreemptCount", value=preempted, comment="0: nobody is preempted"),
    ]


def _notes(want: Wanted) -> list[str]:
    engine = want.scenario.engine
    notes = [f"with npuMemSize -1 instead, set NPU_MEMORY_FRACTION={engine.gpu_memory_utilization:g}"]
    if want.prefix_caching:
        notes.append("prefix caching is a plug-in of MindIE: enable it as its manual says")
    return notes


def _plain(settings: list[Setting]) -> dict[str, Value | Any]:
    return {one.name: one.value for one in settings}
