"""The question of ``simulate kernel``."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from simulator.kernels.tiles import KernelOptions, Layout, Overflow, Prefetch, TableMode, TileKind
from simulator.loading.static import budget_scenario
from simulator.planning.kernel_answer import KernelAnswer, kernel_answer, parse_page_sizes
from simulator.serving.watching import Progress
from simulator.showing import kernel_view
from simulator.showing.asking import HOW, Answered, Asked, options_of


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelQuestion:
    """What page-level attention costs by page size. ``stages`` and ``mechanisms``: print these, too."""

    kind: ClassVar[str] = "kernel"
    asked: Asked
    model: str | None
    device: str | None
    count: int | None
    page_size: str | None
    context: int | None
    batch: int | None
    tile: TileKind
    table: TableMode
    prefetch: Prefetch
    layout: Layout
    overflow: Overflow
    stages: bool = field(default=False, metadata=HOW)
    mechanisms: bool = field(default=False, metadata=HOW)

    def check(self) -> None:
        """Raises ``InputError`` for page sizes that are none."""
        parse_page_sizes(self.page_size)

    def unusual(self) -> dict[str, Any]:
        """What has to be typed to ask this, by the names of the options: all that is not as it is by default."""
        usual = asdict(KernelOptions())
        return {name.replace("_", "-"): value for name, value in options_of(self).items() if value != usual.get(name)}

    def answered(self, *, folder: Path | None, jobs: int, progress: Progress | None) -> Answered:
        """The costs. Raises ``InputError``."""
        del folder, jobs, progress
        scenario = budget_scenario(
            self.asked.scenario, self.asked.settings, model=self.model, device=self.device, count=self.count
        )
        answer = kernel_answer(
            scenario,
            page_sizes=parse_page_sizes(self.page_size),
            context=self.context,
            batch=self.batch,
            options=KernelOptions(
                table=self.table,
                tile=self.tile,
                prefetch=self.prefetch,
                layout=self.layout,
                overflow=self.overflow,
            ),
            has_workload=self.asked.scenario is not None,
        )
        return Answered(
            scenarios=[scenario],
            document=answer.to_list(with_stages=self.stages, with_mechanisms=self.mechanisms),
            summary=kernel_summary(answer),
            tables=_tables(answer),
            show=lambda: self._show(answer),
            warnings=tuple(filter(None, [kernel_view.unaligned(answer)])),
        )

    def _show(self, answer: KernelAnswer) -> None:
        kernel_view.print_answer(answer, with_stages=self.stages, with_mechanisms=self.mechanisms)


def kernel_summary(answer: KernelAnswer) -> dict[str, Any]:
    """What ``summary.json`` of the answer holds."""
    return {
        "model": answer.model,
        "device": answer.device,
        "batch": answer.batch,
        "context_tokens": answer.context,
        "recommended_page_size": answer.best.page_size,
        "lengths": {"requests": answer.weighed_requests, "longest_tokens": answer.longest_tokens},
        "pool": {"tokens": answer.pool_tokens, "assumed": answer.pool_assumed},
        "pages": answer.to_list(with_stages=True, with_mechanisms=True),
    }


def _tables(answer: KernelAnswer) -> dict[str, list[dict[str, Any]]]:
    rows = list(zip(answer.rows, answer.stages, strict=True))
    return {
        "pages": [_flat(row) for row in answer.to_list()],
        "stages": [{"page_size": row.page_size} | asdict(stage) for row, stages in rows for stage in stages],
        "mechanisms": [asdict(one) for one in answer.mechanisms],
    }


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row with its mappings as columns of their own, and lists as text."""
    flat: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, Mapping):
            flat |= {f"{name}.{part}": each for part, each in value.items()}
        else:
            flat[name] = ", ".join(value) if isinstance(value, (list, tuple)) else value
    return flat
