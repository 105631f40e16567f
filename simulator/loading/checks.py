"""Rules that tie several parts of a scenario together: what each key allows alone, but not beside the others."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from simulator.allocators.sharing import RULES
from simulator.config import AllocatorConfig, EngineConfig, PagedCowConfig
from simulator.device import Device
from simulator.errors import nearest_name, shown
from simulator.loading.explain import Complaint
from simulator.loading.yaml_source import KeyPath
from simulator.model import Model
from simulator.units import to_ns
from simulator.workload import WorkloadConfig, trace_names

# A label becomes part of file names.
_LABEL = re.compile(r"[\w(][\w .+()-]{0,59}")


def cross_checks(
    engine: EngineConfig,
    allocators: Sequence[AllocatorConfig],
    *,
    device: Device,
    model: Model,
    workload: WorkloadConfig,
    faulty: bool = False,
) -> Iterator[Complaint]:
    """Every broken rule, placed at the key that most likely has to change."""
    yield from _parallel(engine, device, model)
    yield from _context_parallel(engine, allocators, model)
    yield from _token_budget(engine, engine.max_model_len or model.max_position_embeddings)
    yield from _length(engine, model)
    yield from _replay(engine)
    if faulty and engine.scheduler == "replay":
        rule = "a replay is the demand of a workload on memory that works: give engine.scheduler continuous"
        yield Complaint(("faults",), f"found mistakes to plant; {rule}")
    yield from _seats(engine, allocators, workload)
    yield from _beams(engine, allocators, workload)
    yield from _pools(engine, allocators)
    yield from _labels(allocators)


def _parallel(engine: EngineConfig, device: Device, model: Model) -> Iterator[Complaint]:
    tensor, pipeline = engine.tensor_parallel_size, engine.pipeline_parallel_size
    if model.num_attention_heads % tensor:
        message = f"found {tensor}; must divide the {model.num_attention_heads} attention heads of {model.name}"
        yield Complaint(("engine", "tensor_parallel_size"), message)
    if pipeline > model.num_layers:
        message = f"found {pipeline}; {model.name} has only {model.num_layers} layers to split"
        yield Complaint(("engine", "pipeline_parallel_size"), message)
    if tensor * pipeline > device.count:
        needed = f"tensor_parallel_size {tensor} x pipeline_parallel_size {pipeline} needs {tensor * pipeline}"
        yield Complaint(("device", "count"), f"found {device.count}; {needed} devices")
    if device.replicas > 1 and engine.scheduler == "replay":
        rule = "a replay is the demand of one pool and has no router: give it its share of the arrivals, replicas 1"
        yield Complaint(("device", "replicas"), f"found {device.replicas}; {rule}")


def _context_parallel(engine: EngineConfig, allocators: Sequence[AllocatorConfig], model: Model) -> Iterator[Complaint]:
    """vLLM's rules for ``decode_context_parallel_size``."""
    shares, run = engine.decode_context_parallel_size, engine.cp_kv_cache_interleave_size
    if shares == 1:
        return
    limit, tensor = model.context_limit(engine.tensor_parallel_size), engine.tensor_parallel_size
    path = ("engine", "decode_context_parallel_size")
    if any(group.window is not None for group in model.groups):
        yield Complaint(path, f"found {shares}; {model.name} has layers with a window, which are not divided: use 1")
    elif shares > limit or tensor % shares:
        rule = f"must divide tensor_parallel_size ({tensor}) and be at most {limit}, the devices with the same KV heads"
        yield Complaint(path, f"found {shares}; {rule}")
    for place, allocator in enumerate(allocators):
        where, size = ("allocators", place, "page_size"), allocator.page_size
        if isinstance(size, str):
            yield Complaint(where, f"found {size}; give tokens where devices share contexts")
        elif allocator.kind != "contiguous" and size % run:
            rule = f"must be a multiple of cp_kv_cache_interleave_size ({run})"
            yield Complaint(where, f"found {size}; {rule}")


def _token_budget(engine: EngineConfig, max_model_len: int) -> Iterator[Complaint]:
    if engine.scheduler not in ("continuous", "prefill_first"):
        return
    budget = engine.max_num_batched_tokens
    path = ("engine", "max_num_batched_tokens")
    if budget < engine.max_num_seqs:
        yield Complaint(path, f"found {budget}; must be >= max_num_seqs ({engine.max_num_seqs})")
    elif not engine.enable_chunked_prefill and budget < max_model_len:
        rule = f"must be >= max_model_len ({max_model_len}) while enable_chunked_prefill is false"
        yield Complaint(path, f"found {budget}; {rule}")


def _replay(engine: EngineConfig) -> Iterator[Complaint]:
    if engine.scheduler != "replay":
        return
    if engine.step_time is None:
        yield Complaint(("engine", "scheduler"), "found replay; it needs engine.step_time, the time that a token takes")
    elif to_ns(engine.step_time) < 1:
        yield Complaint(("engine", "step_time"), f"found {engine.step_time:g} s; a replay needs at least 1 ns")
    if engine.scheduling_policy != "fcfs":
        rule = "engine.scheduler: replay has no queue in which somebody could go first: use fcfs"
        yield Complaint(("engine", "scheduling_policy"), f"found {engine.scheduling_policy}; {rule}")
    if engine.on_oom != "fail":
        rule = "engine.scheduler: replay needs fail, as nothing queues there that could wait or be preempted"
        yield Complaint(("engine", "on_oom"), f"found {engine.on_oom}; {rule}")


def _seats(
    engine: EngineConfig, allocators: Sequence[AllocatorConfig], workload: WorkloadConfig
) -> Iterator[Complaint]:
    if engine.scheduler == "replay" or not any(allocator.kind == "paged_cow" for allocator in allocators):
        return
    parts = (workload, *workload.classes)
    samples = max(max(part.samples or 1, part.beam_width or 1) for part in parts)
    if samples > engine.max_num_seqs:
        rule = f"must be >= {samples}, the samples of one request, which run together where they share pages"
        yield Complaint(("engine", "max_num_seqs"), f"found {engine.max_num_seqs}; {rule}")


def _beams(
    engine: EngineConfig, allocators: Sequence[AllocatorConfig], workload: WorkloadConfig
) -> Iterator[Complaint]:
    """The beams of a request go on from each other at every step, so they must share pages and advance together."""
    if not any((part.beam_width or 1) > 1 for part in (workload, *workload.classes)):
        return
    if engine.scheduler not in ("continuous", "prefill_first"):
        rule = "beam_width > 1 needs continuous or prefill_first"
        yield Complaint(("engine", "scheduler"), f"found {engine.scheduler}; {rule}")
    if engine.on_oom not in ("fail", "preempt_swap"):
        rule = "beam_width > 1 needs fail or preempt_swap, which take all beams of a request at once (as vLLM 0.6 does)"
        yield Complaint(("engine", "on_oom"), f"found {engine.on_oom}; {rule}")
    for index, allocator in enumerate(allocators):
        if allocator.kind != "paged_cow":
            rule = "beam_width > 1 needs paged_cow, the only one in which a sequence can go on from another's pages"
            yield Complaint(("allocators", index, "kind"), f"found {allocator.kind}; {rule}")


def _length(engine: EngineConfig, model: Model) -> Iterator[Complaint]:
    if engine.max_model_len is not None and engine.max_model_len > model.max_position_embeddings:
        limit = f"{model.name} has positions for {model.max_position_embeddings}"
        remedy = "set model.max_position_embeddings if its rotary embedding is scaled"
        yield Complaint(("engine", "max_model_len"), f"found {engine.max_model_len}; {limit} ({remedy})")


def _pools(engine: EngineConfig, allocators: Sequence[AllocatorConfig]) -> Iterator[Complaint]:
    for index, allocator in enumerate(allocators):
        if isinstance(allocator.max_pages, int) and allocator.max_pages < 1:
            yield Complaint(("allocators", index, "max_pages"), f"found {allocator.max_pages}; must be >= 1")
        if allocator.max_pages == "unlimited" and engine.scheduler != "replay":
            message = f"'unlimited' is allowed only with engine.scheduler: replay (found {engine.scheduler})"
            yield Complaint(("allocators", index, "max_pages"), message)
        if isinstance(allocator, PagedCowConfig) and allocator.eviction_policy != "lru":
            yield from _eviction(engine, allocator, index)
        if allocator.max_pages is not None and allocator.safety_factor is not None:
            yield Complaint(("allocators", index, "safety_factor"), "sets the same thing as max_pages: keep one")


def _eviction(engine: EngineConfig, allocator: PagedCowConfig, index: int) -> Iterator[Complaint]:
    """Where free and cached pages wait in one queue, the queue is the policy."""
    if (allocator.free_order or RULES[engine.profile].free_order) == "fifo":
        where = "free_order" if allocator.free_order else f"profile {engine.profile}"
        rule = f"{where} keeps free and cached pages in one queue (fifo), which is lru: use lru or free_order: lifo"
        yield Complaint(("allocators", index, "eviction_policy"), f"found {allocator.eviction_policy}; {rule}")


def _labels(allocators: Sequence[AllocatorConfig]) -> Iterator[Complaint]:
    seen: dict[str, int] = {}
    for index, allocator in enumerate(allocators):
        if allocator.label is None:
            continue
        if not _LABEL.fullmatch(allocator.label):
            message = f"found {shown(allocator.label)}; must be up to 60 letters, digits, spaces or any of ._-+()"
            yield Complaint(("allocators", index, "label"), message)
        if allocator.label in seen:
            message = f"{allocator.label!r} is the label of allocators.{seen[allocator.label]}, too: make them differ"
            yield Complaint(("allocators", index, "label"), message)
        seen.setdefault(allocator.label, index)


def missing_files(workload: object, base_dir: Path, path: KeyPath = ("workload",)) -> Iterator[Complaint]:
    """Trace and length files that the raw ``workload`` mapping names and that are not there."""
    if isinstance(workload, list | tuple):
        for index, item in enumerate(workload):
            yield from missing_files(item, base_dir, (*path, index))
    elif isinstance(workload, dict):
        for key, value in workload.items():
            if key in ("path", "file") and isinstance(value, str) and value not in trace_names():
                if not (base_dir / value).is_file():
                    names = tuple(trace_names()) if key == "path" else ()
                    message = f"no such file: {base_dir / value}"
                    yield Complaint((*path, key), message, allowed=names, nearest=nearest_name(value, names))
            else:
                yield from missing_files(value, base_dir, (*path, key))
