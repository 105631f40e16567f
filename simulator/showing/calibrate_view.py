"""What people see of ``simulate calibrate``."""

from collections.abc import Sequence

from simulator.calibrate import Calibration
from simulator.kernels.measured_rows import StepRow, TransferRow
from simulator.showing.terminal import print_rows
from simulator.units import format_percent as percent

WORST_ROWS = 5


def print_calibration(fit: Calibration, rows: Sequence[StepRow] | Sequence[TransferRow]) -> None:
    """The error before and after, the parameters, and the rows that fit worst."""
    print_rows(_summary(fit), [_parameter_row(fit, index) for index in range(len(fit.parameters))])
    order = sorted(range(fit.rows), key=lambda index: -abs(fit.errors_after[index]))[:WORST_ROWS]
    worst = [
        _measured(rows[index])
        | {"before": f"{fit.errors_before[index]:+.1%}", "after": f"{fit.errors_after[index]:+.1%}"}
        for index in order
    ]
    print_rows("\nRows that fit worst (model against measurement):", worst)


def _summary(fit: Calibration) -> str:
    unseen = [parameter.name for parameter in fit.parameters if not parameter.identifiable]
    warning = f" These rows cannot tell: {', '.join(unseen)}." if unseen else ""
    mean = f"{percent(fit.mean_error_before)} before, {percent(fit.mean_error_after)} after the fit"
    largest = f"{percent(fit.largest_error_before)}, then {percent(fit.largest_error_after)}"
    return f"Mean error over {fit.rows} rows: {mean} (largest {largest}).{warning}"


def _parameter_row(fit: Calibration, index: int) -> dict[str, str]:
    parameter = fit.parameters[index]
    return {
        "parameter": parameter.name,
        "before": f"{parameter.before:.4g}",
        "after": f"{parameter.after:.4g}",
        "identified": "yes" if parameter.identifiable else f"no: {parameter.note}",
    }


def _measured(row: StepRow | TransferRow) -> dict[str, str]:
    if isinstance(row, TransferRow):
        return {"transfer": f"{row.transfer_bytes:,} B", "measured": f"{row.gb_per_s:,.4g} GB/s"}
    return {"batch": f"{row.batch}", "context": f"{row.context_tokens:,}", "measured": f"{row.step_ms:.4g} ms"}
