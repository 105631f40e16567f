"""What differs between engines and versions: one table, so that a rule is never hidden in an ``if``.

The rules were read from public source trees (vLLM 0.33.0, 0.11.0 and 0.6.3.post1, SGLang 0.5.10.post1,
hicann/cann-recipes-infer fbc225d); ``docs/model.md`` names the files. A scenario picks a row by ``engine.profile``
and may override single settings by their own keys.
"""

from dataclasses import dataclass
from typing import Literal

from simulator.config import EngineConfig, FreeOrder, ProfileName

Victim = Literal["last_admitted", "fewest_outputs"]


@dataclass(frozen=True, slots=True)
class Profile:
    """Rules of one engine version.

    ``watermark_ratio``: share of the pool kept free at admission. ``whole_prompt_admission``: the whole prompt must fit
    before its first chunk is placed. ``reserved_tokens_per_request``: room kept free at admission for every live
    request. ``null_page``: page 0 serves as padding. ``reverse_release``: a table is given back last page first.
    ``unhashed_first``: pages that hold no cached content are reused before all others. ``deduplicate``: a page whose
    content is already cached is replaced by the cached one. ``victim``: who is preempted. ``watermark_when_idle``: a
    prompt that leaves less than the watermark free is refused even by an empty pool. ``alone_without_threshold``: the
    only live sequence may compute more prompt tokens a step than ``long_prefill_token_threshold``.
    ``append_reserve``: a decode needs free pages as if all that it touches were new (see ``append_reserve``).
    ``whole_page_chunks``: with prefix caching, a prompt's chunks end with a page.
    ``token_budget``: admission keeps room for a share of the tokens to come (see ``token_budget``).
    ``reserves_prompts``: admission keeps room for what prompts under way have still to compute. ``group_pools``:
    groups of layers with different windows have a pool each.
    """

    free_order: FreeOrder
    watermark_ratio: float
    whole_prompt_admission: bool
    reserved_tokens_per_request: int
    null_page: bool
    reverse_release: bool
    unhashed_first: bool
    deduplicate: bool
    victim: Victim
    watermark_when_idle: bool = False
    alone_without_threshold: bool = False
    append_reserve: bool = False
    token_budget: bool = False
    whole_page_chunks: bool = False
    group_pools: bool = False
    reserves_prompts: bool = False


PROFILES: dict[ProfileName, Profile] = {
    "generic": Profile("lifo", 0.0, True, 0, False, False, True, False, "last_admitted"),
    "vllm-0.33": Profile(
        *("fifo", 0.0, True, 0, True, True, True, False, "last_admitted"),
        alone_without_threshold=True,
        reserves_prompts=True,
    ),
    "vllm-0.11": Profile("fifo", 0.0, False, 0, True, True, False, False, "last_admitted"),
    "vllm-0.6": Profile(
        *("lifo", 0.01, True, 0, False, False, True, True, "last_admitted"),
        watermark_when_idle=True,
        append_reserve=True,
        whole_page_chunks=True,
    ),
    "sglang": Profile("lifo", 0.0, True, 0, False, False, True, True, "fewest_outputs", token_budget=True),
    "cann-recipes": Profile("fifo", 0.0, True, 64, True, False, False, False, "last_admitted", group_pools=True),
}


@dataclass(frozen=True, slots=True)
class AdmissionRules:
    """The profile's admission rules after the scenario's own overrides."""

    watermark_ratio: float
    whole_prompt: bool
    reserved_tokens_per_request: int
    watermark_when_idle: bool
    alone_without_threshold: bool
    whole_page_chunks: bool


def admission_rules(engine: EngineConfig) -> AdmissionRules:
    """The rules in force: the engine's explicit settings over its profile's."""
    profile = PROFILES[engine.profile]
    return AdmissionRules(
        watermark_ratio=profile.watermark_ratio if engine.watermark is None else engine.watermark,
        whole_prompt=(
            profile.whole_prompt_admission if engine.whole_prompt_admission is None else engine.whole_prompt_admission
        ),
        reserved_tokens_per_request=(
            profile.reserved_tokens_per_request
            if engine.reserved_tokens_per_request is None
            else engine.reserved_tokens_per_request
        ),
        watermark_when_idle=profile.watermark_when_idle,
        alone_without_threshold=profile.alone_without_threshold,
        whole_page_chunks=profile.whole_page_chunks,
    )
