"""Settings of vLLM and of its Ascend plugin, as a ``vllm serve`` command.

Rules: vLLM's ``CacheConfig`` and ``SchedulerConfig``; vllm-ascend's attention backend runs blocks of 128 tokens only
(``attention_v1.py:get_supported_kernel_block_sizes``).
"""

import shlex

from simulator.model import hub_id
from simulator.showing.export_base import Export, Refusals, Setting, Wanted

_BLOCK_SIZES = {"vllm": (1, 8, 16, 32, 64, 128), "vllm-ascend": (128,)}
_CACHE_TYPES = {"vllm": ("auto", "bf16", "fp8"), "vllm-ascend": ("auto", "int8")}
_SPELLING = {"bf16": "bfloat16"}


def vllm_export(want: Wanted, engine: str) -> Export:
    """The command. Raises ``InputError`` with everything that the engine does not accept."""
    _check(want, engine)
    settings = tuple(_settings(want))
    return Export(engine=engine, settings=settings, text=_command(want, settings), notes=tuple(_notes(want)))


def _check(want: Wanted, engine: str) -> None:
    settings, refusals = want.scenario.engine, Refusals(engine, want.index)
    sizes, types = _BLOCK_SIZES[engine], _CACHE_TYPES[engine]
    size = _block_size(want)
    refusals.unless(size in sizes, ".page_size", f"has no blocks of {size} tokens", sizes)
    kind = settings.kv_cache_dtype
    refusals.unless(kind in types, "engine.kv_cache_dtype", f"has no KV cache of type {kind}", types)
    refusals.unless(
        settings.on_oom != "preempt_swap", "engine.on_oom", "preempts by recompute only, it swaps nothing out"
    )
    refusals.unless(
        settings.fraction_of == "total",
        "engine.fraction_of",
        "gpu_memory_utilization is a share of the total",
        ["total"],
    )
    refusals.unless(
        settings.scheduler == "continuous",
        "engine.scheduler",
        f"does not schedule {settings.scheduler}",
        ["continuous"],
    )
    tokens = settings.max_num_batched_tokens
    refusals.unless(
        settings.enable_chunked_prefill or tokens >= want.max_model_len,
        "engine.max_num_batched_tokens",
        f"needs at least max_model_len ({want.max_model_len}) without chunked prefill",
    )
    refusals.check()


def _block_size(want: Wanted) -> int:
    """Tokens of a page on one device."""
    return want.page_tokens // want.scenario.engine.decode_context_parallel_size


def _settings(want: Wanted) -> list[Setting]:
    engine = want.scenario.engine
    found = [
        Setting(name="--tensor-parallel-size", value=engine.tensor_parallel_size),
        Setting(name="--max-model-len", value=want.max_model_len, comment="tokens, prompt and output"),
        Setting(name="--max-num-seqs", value=engine.max_num_seqs, comment="sequences in a batch"),
        Setting(name="--max-num-batched-tokens", value=engine.max_num_batched_tokens, comment="tokens of a step"),
        Setting(name="--block-size", value=_block_size(want), comment="tokens of a page"),
        Setting(name="--gpu-memory-utilization", value=engine.gpu_memory_utilization, comment="of the whole card"),
        Setting(name="--num-gpu-blocks-override", value=want.max_pages, comment="pages, the size found"),
    ]
    if engine.pipeline_parallel_size > 1:
        found.insert(1, Setting(name="--pipeline-parallel-size", value=engine.pipeline_parallel_size))
    if engine.decode_context_parallel_size > 1:
        found.insert(1, Setting(name="--decode-context-parallel-size", value=engine.decode_context_parallel_size))
        found.append(Setting(name="--cp-kv-cache-interleave-size", value=engine.cp_kv_cache_interleave_size))
    if engine.kv_cache_dtype in ("fp8", "bf16"):
        spelled = _SPELLING.get(engine.kv_cache_dtype, engine.kv_cache_dtype)
        found.append(Setting(name="--kv-cache-dtype", value=spelled))
    for name, on in (
        ("enable-prefix-caching", want.prefix_caching),
        ("enable-chunked-prefill", engine.enable_chunked_prefill),
    ):
        found.append(Setting(name=f"--{name}" if on else f"--no-{name}", value=True))
    return found


def _notes(want: Wanted) -> list[str]:
    engine = want.scenario.engine
    notes = []
    if engine.on_oom in ("fail", "wait"):
        notes.append(f"the scenario's on_oom is {engine.on_oom}; vLLM preempts and computes again when pages run out")
    if engine.watermark:
        notes.append(f"watermark {engine.watermark:g} is not exported: its option differs between versions")
    if engine.kv_cache_dtype == "int8":
        notes.append("an int8 KV cache comes from a checkpoint quantised for it (C8), not from an option")
    return notes


def _command(want: Wanted, settings: tuple[Setting, ...]) -> str:
    """A command for a POSIX shell; each option's comment stands above it, where a shell allows one."""
    comments = [f"# {one.name}: {one.comment}" for one in settings if one.comment]
    words = [one.name if one.value is True else f"{one.name} {one.value}" for one in settings]
    return "\n".join([*comments, " \\\n  ".join([f"vllm serve {shlex.quote(_served(want))}", *words])])


def _served(want: Wanted) -> str:
    """What to load: a model of the catalogue by its Hugging Face id, another one by its name."""
    model = want.scenario.model
    return want.scenario.loaded_model.name if model.preset is None or model.name else hub_id(model.preset)
