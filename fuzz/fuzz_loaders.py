"""Coverage-guided fuzzing of the loaders (needs `pip install atheris`; CPython for Linux or macOS).

    python fuzz/fuzz_loaders.py --target model --seconds 60
    python fuzz/fuzz_loaders.py --seconds 600          # all targets, a share of the time each

Starts from good inputs and those kept in ``fuzz/inputs/<target>/``. An input that makes a loader do anything but
return or refuse, take over five seconds or over 2 GiB, is written to ``fuzz/inputs/<target>/`` and ends that
target's run; ``tests/test_fuzz_inputs.py`` gives it to the loader again from then on.
"""

import argparse
import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]


def fuzz(target: str, seconds: int, corpus: Path) -> None:
    """Fuzz one target in this process; libFuzzer ends the process."""
    import atheris

    # Every branch of the loaders guides the fuzzer; libraries below them do not.
    with atheris.instrument_imports(include=["simulator"]):
        import loaders

    def one(data: bytes) -> None:
        loaders.read(target, data)

    kept = HERE / "inputs" / target
    kept.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(loaders.seeds(target)):
        (corpus / f"seed{number}").write_bytes(seed)
    for path in kept.iterdir():
        shutil.copy(path, corpus)
    limits = [f"-max_total_time={seconds}", "-timeout=5", "-rss_limit_mb=2048", "-max_len=8192", "-print_final_stats=1"]
    atheris.Setup([sys.argv[0], *limits, f"-artifact_prefix={kept}/", str(corpus)], one)
    atheris.Fuzz()


def run(target: str, seconds: int) -> dict[str, object]:
    """Fuzz one target in a process of its own; what libFuzzer says at the end."""
    with tempfile.TemporaryDirectory() as corpus:
        words = [sys.executable, __file__, "--inside", corpus, "--target", target, "--seconds", str(seconds)]
        ended = subprocess.run(words, capture_output=True, text=True, errors="replace", check=False)
    found: dict[str, object] = {"target": target, "seconds": seconds, "fault": ended.returncode != 0}
    for line in ended.stderr.splitlines():
        if line.startswith("stat::number_of_executed_units"):
            found["executions"] = int(line.split()[-1])
        elif " cov: " in line:
            with contextlib.suppress(ValueError, IndexError):
                found["branches"] = int(line.split(" cov: ")[1].split()[0])
    if ended.returncode:
        found["said"] = ended.stderr[-3000:]
    return found


def main() -> None:
    """Fuzz the targets one after the other and print what came of it as JSON lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", help="only this one")
    parser.add_argument("--seconds", type=int, default=600, help="in all")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        fuzz(options.target, options.seconds, options.inside)
        return
    from loaders import TARGETS

    targets = [options.target] if options.target else list(TARGETS)
    faults = 0
    for target in targets:
        found = run(target, max(1, options.seconds // len(targets)))
        faults += bool(found["fault"])
        print(json.dumps(found), flush=True)
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
