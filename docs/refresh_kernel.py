"""Draw the pictures of docs/kernel.md and put the commands' output into it: ``python -m docs.refresh_kernel``.

Takes about a minute. A block that follows a line ``$ simulate ...`` inside a fence is replaced by what it prints.
"""

import re
from pathlib import Path

from docs.printed import printed
from simulator.device import DeviceConfig, load_device
from simulator.kernels.kernel_agreement import agreement
from simulator.loading.static import budget_scenario
from simulator.planning.kernel_answer import kernel_answer
from simulator.rng import stream
from simulator.showing.kernel_command import kernel_summary
from simulator.showing.plots.agreement import agreement_errors
from simulator.showing.plots.kernel import kernel_costs
from simulator.showing.plots.style import styled, svg_bytes

DOCS = Path(__file__).parent
PICTURES = DOCS / "img" / "kernel"
DEVICES = ("910B1", "910B2", "910B3", "910B4", "910C")
LAUNCHES = 400
BLOCK = re.compile(r"(```text\n\$ simulate ([^\n]+)\n).*?(?=```)", re.DOTALL)


def main() -> None:
    """Write both pictures and the page."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    devices = [load_device(DeviceConfig(preset=name)) for name in DEVICES]
    equal, mixed = (
        agreement(stream(1, "launches", index=int(is_mixed)), devices, count=LAUNCHES, mixed=is_mixed)
        for is_mixed in (False, True)
    )
    answer = kernel_answer(budget_scenario(None, (), model="llama-3.1-8b", device="910B2"), has_workload=False)
    with styled():
        (PICTURES / "agreement.svg").write_bytes(svg_bytes(agreement_errors(equal, mixed)))
        (PICTURES / "page_size.svg").write_bytes(svg_bytes(kernel_costs(kernel_summary(answer), str)))
    page = DOCS / "kernel.md"
    page.write_text(BLOCK.sub(lambda found: found[1] + output(found[2].split()), page.read_text()))


def output(words: list[str]) -> str:
    """What the command prints that writes no report."""
    return printed([*words, "--no-report"] if words[0] == "kernel" else words, codes=(0,))


if __name__ == "__main__":
    main()
