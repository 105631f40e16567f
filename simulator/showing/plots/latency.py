"""Distributions of the time to the first token and of the time between tokens."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from simulator.showing.plots import style

if TYPE_CHECKING:
    from simulator.showing.report_data import ReportData, RunData

Values = npt.NDArray[Any]
_QUANTILES = np.unique(np.concatenate([np.linspace(0, 1, 201), 1 - np.logspace(-4, -2, 21)]))


def counted(run: "RunData") -> npt.NDArray[np.bool_]:
    """Which requests count: completed ones."""
    completed: npt.NDArray[np.bool_] = run.requests["outcome"] == "completed"
    return completed


def ttft_s(run: "RunData") -> Values:
    """Seconds from arrival to the first token, of completed requests."""
    here, table = counted(run), run.requests
    values: Values = (table["first_token_s"] - table["arrival_s"])[here]
    return values


def tpot_s(run: "RunData") -> Values:
    """Mean seconds between output tokens after the first, of completed requests with two or more."""
    table = run.requests
    here = counted(run) & (table["generated_tokens"] > 1)
    values: Values = (table["finish_s"] - table["first_token_s"])[here] / (table["generated_tokens"][here] - 1)
    return values


def quantiles(values: Values) -> tuple[Values, Values]:
    """A distribution as at most some 220 points, denser in the upper tail: values and shares not above them."""
    if not len(values):
        return np.zeros(0), np.zeros(0)
    return np.quantile(values, _QUANTILES), _QUANTILES


PANELS: dict[str, Callable[["RunData"], Values]] = {
    "time to first token (TTFT)": ttft_s,
    "time per further token (TPOT)": tpot_s,
}


def latency(data: "ReportData", words: style.Words) -> "style.Figure | None":
    """Empirical distribution functions, one line an allocator, time on a logarithmic axis."""
    runs = [run for run in data.shown if "outcome" in run.requests][: style.MAX_SHOWN]
    if not any(counted(run).any() for run in runs):
        return None
    title = words("How long do completed requests wait for tokens?")
    columns = style.name_columns([run.name for run in runs])
    legend_rows = -(-len(runs) // columns)
    drawn = style.figure(title, height_in=style.top_in(title, legend_rows=legend_rows) + 0.66 + 3.4)
    axes = style.panels(drawn, title, 2, legend_rows=legend_rows)
    for panel, (name, values_of) in zip(axes, PANELS.items(), strict=True):
        entries = [(run.name, _draw(panel, values_of(run), line)) for line, run in enumerate(runs)]
        style.panel_title(panel, words(name))
        style.seconds_axis(panel)
        panel.set_ylim(0, 101)
        panel.set_ylabel(f"{words('requests')} [%]")
        panel.grid(True, axis="x")
    axes[-1].set_xlabel(f"{words('time')} [s]")
    style.legend(drawn, title, entries, columns=columns)
    return drawn


def _draw(panel: "style.Axes", values: Values, line: int) -> Any:
    at, share = quantiles(np.maximum(values, 1e-6))
    return panel.plot(at, 100 * share, color=style.LINES[line], linestyle=style.DASHES[line])[0]
