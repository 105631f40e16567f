"""What ``simulate kernel`` answers: the cost by page size, the stages of a step, the page size to take."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from simulator.cost import StepCost, StepLoad
from simulator.errors import InputError, Problem
from simulator.kernels.kernel_table import KernelRow, PageChoice, kernel_table, recommend_page_size
from simulator.kernels.mechanism_table import DecodeStep, MechanismCost, mechanism_table
from simulator.kernels.stages import StageCost
from simulator.kernels.tiles import KernelOptions
from simulator.scenario import Scenario
from simulator.units import ceil_div

PAGE_SIZES = (8, 16, 32, 64, 128, 256, 512, 1024)
MOST_PAGE_TOKENS = 2**20
CONTEXT_TOKENS = 4096
BATCH = 32
# Lengths that a page size is judged by: as many of the workload's requests, or points of the spread below.
MOST_LENGTHS = 2000
SPREAD = 256
GOLDEN = 0.6180339887498949


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelAnswer:
    """Rows and choices, one of each for a page size; ``stages`` of a decode step under each.

    ``mechanisms`` are worth what they say with the recommended page size.

    ``lengths`` says in words what the choice weighs (``weighed_requests`` of a workload, or for 0 a spread up to
    ``longest_tokens``), ``pool`` how many tokens of KV cache it shares out (``pool_assumed``: more than there is).
    """

    model: str
    device: str
    context: int
    batch: int
    rows: tuple[KernelRow, ...]
    stages: tuple[tuple[StageCost, ...], ...]
    mechanisms: tuple[MechanismCost, ...]
    choices: tuple[PageChoice, ...]
    best: PageChoice
    lengths: str
    weighed_requests: int
    longest_tokens: int
    pool: str
    pool_tokens: int
    pool_assumed: bool

    def to_list(self, *, with_stages: bool = False, with_mechanisms: bool = False) -> list[dict[str, Any]]:
        """The JSON document: one mapping a page size; the recommended one has the mechanisms, if wanted."""
        documents = []
        for row, stages, choice in zip(self.rows, self.stages, self.choices, strict=True):
            document = asdict(row) | {
                "context_tokens": self.context,
                "batch": self.batch,
                "internal_waste": choice.internal_waste,
                "sequences": choice.sequences,
                "step_seconds": choice.step_seconds,
                "tokens_per_s": choice.tokens_per_s,
                "recommended": choice is self.best,
            }
            if with_stages:
                document["stages"] = [asdict(stage) for stage in stages]
            if with_mechanisms and choice is self.best:
                document["mechanisms"] = [asdict(one) for one in self.mechanisms]
            documents.append(document)
        return documents


def kernel_answer(
    scenario: Scenario,
    *,
    page_sizes: Sequence[int] = PAGE_SIZES,
    context: int | None = None,
    batch: int | None = None,
    options: KernelOptions | None = None,
    has_workload: bool,
) -> KernelAnswer:
    """Cost one launch (a layer) and one decode step of ``batch`` sequences of ``context`` tokens.

    Without ``context`` it is the mean length of the workload's running sequences; ``has_workload`` is false for a
    scenario that only names model and device. Raises ``InputError`` when the workload cannot be generated.
    """
    device, model, engine = scenario.loaded_device, scenario.loaded_model, scenario.engine
    if engine.decode_context_parallel_size > 1:
        message = "a launch is looked at on one device: set it to 1, and --context to that device's share"
        raise InputError([Problem(key="engine.decode_context_parallel_size", message=message)])
    lengths, said = _lengths(scenario, context, has_workload=has_workload)
    context = context or max(1, round(sum(lengths) / len(lengths)))
    pool_tokens, pool = _pool(scenario, context, batch)
    batch = batch or max(1, min(BATCH, engine.max_num_seqs, pool_tokens // context))
    sizes = sorted(set(page_sizes))
    best, choices = recommend_page_size(
        device, model, engine, sizes, lengths=lengths, pool_tokens=pool_tokens, options=options
    )
    stages = tuple(_stages(scenario, size, context, batch, options) for size in sizes)
    step = DecodeStep(
        device=device, model=model, engine=engine, page_tokens=best.page_size, context=context, batch=batch
    )
    step_s = sum(stage.seconds for stage in stages[sizes.index(best.page_size)])
    return KernelAnswer(
        model=model.name,
        device=device.name,
        context=context,
        batch=batch,
        rows=tuple(kernel_table(device, model, engine, sizes, context=context, batch=batch, options=options)),
        stages=stages,
        mechanisms=mechanism_table(step, step_s),
        choices=choices,
        best=best,
        lengths=said,
        weighed_requests=len(lengths) if has_workload else 0,
        longest_tokens=max(lengths),
        pool=pool,
        pool_tokens=pool_tokens,
        pool_assumed=not _has_room(scenario, context),
    )


def parse_page_sizes(text: str | None) -> tuple[int, ...]:
    """``"16,32"`` as tokens; the usual sizes for ``None``. Raises ``InputError``."""
    if text is None:
        return PAGE_SIZES
    sizes = []
    for piece in text.split(","):
        plain = piece.strip()
        if not plain.isascii() or not plain.isdigit() or not 0 < int(plain[:9]) <= MOST_PAGE_TOKENS:
            message = f"{piece!r} is no page size: give tokens, such as 16,32,128, at most {MOST_PAGE_TOKENS:,}"
            raise InputError([Problem(option="--page-size", message=message)])
        sizes.append(int(plain))
    return tuple(sizes)


def _lengths(scenario: Scenario, context: int | None, *, has_workload: bool) -> tuple[list[int], str]:
    """Tokens of sequences as they are met half-way through their output, and what they are in words."""
    if has_workload:
        requests = scenario.requests()
        prompts, outputs = requests.prompt_tokens[:MOST_LENGTHS], requests.output_tokens[:MOST_LENGTHS]
        if len(prompts):
            return (prompts + outputs // 2).tolist(), f"{len(prompts):,} requests of the workload, half-way through"
    middle = context or CONTEXT_TOKENS
    # Multiples of the golden ratio, so that no page size divides the lengths.
    spread = [1 + int(point * GOLDEN % 1.0 * 2 * middle) for point in range(1, SPREAD + 1)]
    return spread, f"lengths spread evenly up to {2 * middle:,} tokens"


def _pool(scenario: Scenario, context: int, batch: int | None) -> tuple[int, str]:
    budget = scenario.budget
    if _has_room(scenario, context):
        return budget.kv_tokens, f"{budget.kv_tokens:,} KV tokens that the device has room for"
    tokens = (batch or BATCH) * context
    return tokens, f"an assumed pool of {tokens:,} KV tokens (the model leaves no room on {scenario.device.count})"


def _has_room(scenario: Scenario, context: int) -> bool:
    return scenario.budget.fits and scenario.budget.kv_tokens >= context


def _stages(
    scenario: Scenario, page_size: int, context: int, batch: int, options: KernelOptions | None
) -> tuple[StageCost, ...]:
    model = scenario.loaded_model
    cost = StepCost(scenario.loaded_device, model, scenario.engine, page_tokens=page_size, options=options)
    window = next((group.window for group in model.groups if group.window is not None), None)
    load = StepLoad(
        decode_sequences=batch,
        decode_context_tokens=batch * context,
        decode_pages=batch * ceil_div(context, page_size),
        decode_windowed_tokens=0 if window is None else batch * min(context, window),
        sampled_sequences=batch,
        new_pages=ceil_div(batch, page_size),
    )
    return cost.breakdown(load)
