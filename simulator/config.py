"""Engine and allocator settings as a scenario spells them.

Engine keys are vLLM's names verbatim, so that a serving command can be copied over. ``None`` means "as the
engine profile says" (see ``profiles``).
"""

from typing import Annotated, Literal

from pydantic import AliasChoices, BeforeValidator, Field, field_validator

from simulator import units
from simulator.fields import Bytes, Config, Ratio, Seconds

ProfileName = Literal["generic", "vllm-0.33", "vllm-0.11", "vllm-0.6", "sglang", "cann-recipes"]
SchedulerName = Literal["continuous", "prefill_first", "static", "replay"]
SchedulingPolicy = Literal["fcfs", "priority"]
#: engines count tokens, sequences and pages in 32 bits
MOST = 2**31 - 1
OnOom = Literal["fail", "wait", "preempt_recompute", "preempt_swap"]
DType = Literal["auto", "fp32", "fp16", "bf16", "fp8", "int8", "int4"]
FreeOrder = Literal["lifo", "fifo", "address_ordered", "first_fit_scan"]
GrowBy = Literal["page", "run"]
EvictionPolicy = Literal["lru", "lfu", "fifo", "mru", "filo", "priority"]


class EngineConfig(Config):
    """What the serving engine is told at start-up."""

    profile: ProfileName = "generic"
    scheduler: SchedulerName = "continuous"
    tensor_parallel_size: int = Field(1, ge=1)
    pipeline_parallel_size: int = Field(1, ge=1)
    decode_context_parallel_size: int = Field(
        1, ge=1, description="devices of the tensor-parallel group that share the tokens of a context among them"
    )
    cp_kv_cache_interleave_size: int = Field(
        1, ge=1, le=MOST, description="adjacent tokens that one of those devices keeps before it is the next one's turn"
    )
    gpu_memory_utilization: float = Field(0.9, gt=0, le=1)
    fraction_of: Literal["total", "free_after_weights", "free_at_start"] = "total"
    kv_cache_dtype: DType = "auto"
    max_num_seqs: int = Field(256, ge=1, le=MOST)
    max_num_batched_tokens: int = Field(8192, ge=1, le=MOST)
    max_model_len: int | None = Field(None, ge=1, le=MOST)
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = Field(0, ge=0, le=MOST)
    adaptive_long_prefill_threshold: bool = Field(
        False, description="the threshold is at least the step's budget over the number of live sequences (vLLM 0.33)"
    )
    scheduling_policy: SchedulingPolicy = "fcfs"
    on_oom: OnOom = "preempt_recompute"
    swap_bytes: Bytes = Field(4 * 2**30, validation_alias=AliasChoices("swap_bytes", "swap_space"))
    queue_timeout: Seconds | None = None
    step_time: Seconds | None = None
    watermark: Ratio | None = None
    num_lookahead_tokens: int = Field(0, ge=0, le=MOST)
    whole_prompt_admission: bool | None = None
    reserved_tokens_per_request: int | None = Field(None, ge=0, le=MOST)
    activation_bytes: Bytes | None = None
    runtime_bytes: Bytes | None = None
    graph_bytes: Bytes | None = None


def _page_size(value: object) -> object:
    """A bare integer, quoted or not, is tokens; a text with a unit is bytes and stays text, as ``"<n>B"``."""
    if not isinstance(value, str):
        return value
    plain = value.strip()
    return int(plain) if plain.isascii() and plain.isdigit() and len(plain) < 20 else f"{units.parse_bytes(value)}B"


PageSize = Annotated[int | str, BeforeValidator(_page_size)]


FaultKind = Literal["missed_end_of_sequence", "forgotten_decrement", "stale_page_table", "double_release"]


class FaultConfig(Config):
    """A mistake to plant into memory management: every ``every``-th release goes wrong."""

    kind: FaultKind
    every: int = Field(100, ge=1, le=MOST)


class PoolConfig(Config):
    """What every allocator may override about its pool."""

    label: str | None = None
    kv_capacity_bytes: Bytes | None = None
    max_pages: int | Literal["unlimited"] | None = Field(
        None, validation_alias=AliasChoices("max_pages", "num_gpu_blocks_override")
    )
    safety_factor: float | None = Field(None, gt=0)
    page_size: PageSize = Field(128, validation_alias=AliasChoices("page_size", "block_size"))

    @field_validator("page_size")
    @classmethod
    def _positive(cls, value: int | str) -> int | str:
        if (int(value[:-1]) if isinstance(value, str) else value) < 1:
            raise ValueError("page_size must be at least one token (or one byte)")
        return value


class ContiguousConfig(PoolConfig):
    """One unbroken range of addresses a sequence. ``page_size`` here is the granule that sizes round up to."""

    kind: Literal["contiguous"]
    page_size: PageSize = Field(1, validation_alias=AliasChoices("page_size", "block_size"))
    reserve: Literal["max_model_len", "pow2", "exact", "grow"] = "max_model_len"
    fit: Literal["first", "best", "next", "worst", "buddy"] = "first"
    grow_tokens: int = Field(128, ge=1, le=MOST, description="how far a `grow` reservation is extended at a time")


class PagedBase(PoolConfig):
    """What all paged allocators share."""

    free_order: FreeOrder | None = None
    null_page: bool | None = None
    page_table_align_bytes: int = Field(128, ge=4, le=2**30)


class PagedConfig(PagedBase):
    """Equal pages, one page table a sequence."""

    kind: Literal["paged"]
    pools: Literal["shared", "per_group"] | None = Field(
        None, description="groups of layers with different windows draw on one pool, or each has its own"
    )


class PagedCowConfig(PagedBase):
    """Paged with reference counts: prefix sharing, forks, copy-on-write."""

    kind: Literal["paged_cow"]
    enable_prefix_caching: bool = True
    hit_rate_window: int = Field(1000, ge=1, description="requests that kv.prefix_hit_rate_recent looks back on")
    eviction_policy: EvictionPolicy = Field(
        "lru",
        validation_alias=AliasChoices("eviction_policy", "radix_eviction_policy"),
        description="which cached page is given up next; others than lru choose among leaves, as SGLang does",
    )


class DefragTrigger(Config):
    """When to compact; any condition that holds starts it."""

    on_failure: bool = True
    fragmentation: Ratio | None = None
    period: Seconds | None = None


class PagedDefragConfig(PagedBase):
    """Paged in runs of adjacent pages, compacted when runs become scarce."""

    kind: Literal["paged_defrag"]
    run_length: int = Field(8, ge=1, le=MOST)
    trigger: DefragTrigger = DefragTrigger()
    max_moves_per_step: int = Field(64, ge=1, le=MOST)
    grow_by: GrowBy = Field("page", description="what a growing sequence takes: the page it needs or the next run")
    strict_runs: bool = Field(True, description="a missing run is a failure; if false, single pages stand in")

    @field_validator("free_order")
    @classmethod
    def _queued(cls, value: FreeOrder | None) -> FreeOrder | None:
        if value not in (None, "lifo", "fifo"):
            raise ValueError("paged_defrag keeps its runs in queues: free_order is lifo or fifo")
        return value


AllocatorConfig = Annotated[
    ContiguousConfig | PagedConfig | PagedCowConfig | PagedDefragConfig, Field(discriminator="kind")
]


Load = Literal["requests", "kv"]


class RoundRobinConfig(Config):
    """Instances take turns."""

    policy: Literal["round_robin"]


class LeastLoadedConfig(Config):
    """The instance with the fewest live requests, or the least KV memory held, gets the arrival."""

    policy: Literal["least_loaded"]
    load: Load = Field("requests", description="what is compared: live requests, or KV bytes held (kv)")


class PrefixAffinityConfig(Config):
    """The instance that was sent the longest part of the prompt, unless loads are too unequal (SGLang's names)."""

    policy: Literal["prefix_affinity"]
    load: Load = Field("requests", description="what decides where affinity does not")
    cache_threshold: Ratio = Field(0.3, description="share of the prompt that must be known for affinity to count")
    balance_abs_threshold: int = Field(64, ge=0, description="live requests by which instances may differ ...")
    balance_rel_threshold: float = Field(1.5, ge=1, description="... and the factor; beyond both, load decides")


RouterConfig = Annotated[RoundRobinConfig | LeastLoadedConfig | PrefixAffinityConfig, Field(discriminator="policy")]
