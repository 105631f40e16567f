"""This simulator beside the fastest peer, NVIDIA Dynamo's mocker (Rust, PyPI ``ai-dynamo-runtime``), on one machine.

    python benchmarks/peers/compare.py [--rounds 5] [--only chat]

Makes a virtual environment for the peer beside this file, then runs both sides in turn, each in a process of its own,
and prints the median of each and their ratio: requests per second of wall time, and of processor time. What is
timed is the call that simulates, with its reading of the trace; imports are not.
"""

import argparse
import gzip
import json
import os
import subprocess
import sys
import venv
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
PEER = "ai-dynamo-runtime==1.6.1"
PEER_VENV = HERE / ".venv"
MOONCAKE = ROOT / "simulator" / "presets" / "traces" / "mooncake_fast25_conversation.jsonl.gz"


@dataclass(frozen=True)
class Workload:
    """One row of the table: the peer's engine and workload, and the same as our settings."""

    title: str
    requests: int
    page_tokens: int
    pages: int
    prefix_cache: bool
    target: str
    trace: bool = False
    peer: dict[str, Any] = field(default_factory=dict)

    def peer_argument(self, trace: Path) -> str:
        """What ``mocker_side.py`` is told."""
        engine = {
            "block_size": self.page_tokens,
            "num_gpu_blocks": self.pages,
            "enable_prefix_caching": self.prefix_cache,
        }
        source = {"trace": str(trace)} if self.trace else {**self.peer, "requests": self.requests}
        return json.dumps({"engine": engine, **source})

    def our_argument(self) -> str:
        """What ``our_side.py`` is told."""
        if self.trace:
            workload = "{arrivals: {process: trace, path: mooncake_conversation}}"
        else:
            lengths = f"prompt_tokens: {self.peer['prompt_tokens']}, output_tokens: {self.peer['output_tokens']}"
            arrivals = f"arrivals: {{process: poisson, rate: {self.peer['rate']}}}"
            workload = f"{{{arrivals}, {lengths}, requests: {self.requests}}}"
        kind = "paged_cow" if self.prefix_cache else "paged"
        pool = f"{{kind: {kind}, page_size: {self.page_tokens}, max_pages: {self.pages}}}"
        return json.dumps([f"workload={workload}", f"allocators=[{pool}]"])


def _chat(rate: float, output_tokens: int = 200) -> dict[str, Any]:
    return {"prompt_tokens": 1000, "output_tokens": output_tokens, "rate": rate}


WORKLOADS = {
    "chat": Workload("1000 / 200 tokens, 8/s", 16_000, 16, 8192, False, "1.5", peer=_chat(8)),
    "chat-cached": Workload("same, prefix cache on", 16_000, 16, 8192, True, "1.5", peer=_chat(8)),
    "long": Workload("1000 / 2000 tokens, 0.8/s", 4_000, 16, 16_384, False, "10", peer=_chat(0.8, 2000)),
    "starved": Workload("4096 pages, 14/s", 4_000, 16, 4096, False, "1", peer=_chat(14)),
    "mooncake-512": Workload("Mooncake conversation, pages of 512", 12_031, 512, 2048, True, "2", trace=True),
    "mooncake-16": Workload("Mooncake conversation, pages of 16", 12_031, 16, 65_536, True, "2", trace=True),
}


def peer_python() -> Path:
    """The interpreter that has the peer, which is installed when it is missing."""
    python = PEER_VENV / "bin" / "python"
    if not python.exists():
        print(f"installing {PEER} into {PEER_VENV}", file=sys.stderr)
        venv.create(PEER_VENV, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", PEER], check=True)
    return python


def measure(command: list[str | Path]) -> dict[str, Any]:
    """What one side says of one run."""
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{command[1]} failed:\n{done.stderr}")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def compare(workload: Workload, *, rounds: int, python: Path, trace: Path) -> str:
    """One row of the table."""
    ours, peers = [], []
    for _ in range(rounds):
        ours.append(measure([sys.executable, HERE / "our_side.py", workload.our_argument()]))
        peers.append(measure([python, HERE / "mocker_side.py", workload.peer_argument(trace)]))
    cells = [workload.title]
    for clock in ("wall_s", "cpu_s"):
        here, there = (median(workload.requests / run[clock] for run in side) for side in (ours, peers))
        cells += [f"{here:,.0f}", f"{there:,.0f}", f"{here / there:.2f}"]
    last = ours[-1]
    cells += [workload.target, last["core"], f"{last['batch']['mean']:.0f}", f"{last['preemptions']:,}"]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=WORKLOADS, nargs="*", default=list(WORKLOADS))
    options = parser.parse_args()
    python = peer_python()
    trace = PEER_VENV / "mooncake.jsonl"
    trace.write_bytes(gzip.decompress(MOONCAKE.read_bytes()))
    print(
        "| workload | req/s here | peer | ratio | req/CPU-s here | peer | ratio | wanted | core | batch | preemptions |"
    )
    print("|---|--:|--:|--:|--:|--:|--:|--:|---|--:|--:|")
    for name in options.only:
        print(compare(WORKLOADS[name], rounds=options.rounds, python=python, trace=trace), flush=True)


if __name__ == "__main__":
    main()
