"""Mutation testing of ``simulator/allocators/``: every small mistake, and whether a test notices it.

The tests are collected once. A first pass notes which of them run which lines of the package. Then, for each mutant,
a forked process replaces the code of the one function that differs and runs the tests that reach the line, quickest
and most successful first, until one fails; so 3,000 mutants take minutes, not days. Mutants outside of functions are
imported afresh. Results go to a journal, line by line; the table is printed at the end.

    python benchmarks/mutate_allocators.py --out mutation.jsonl            # all modules
    python benchmarks/mutate_allocators.py --out mutation.jsonl --module paged --module arena
    python benchmarks/mutate_allocators.py --out mutation.jsonl --sample 400 --salt 2   # of each module its share
    python benchmarks/mutate_allocators.py --out mutation.jsonl --table    # only print what is known
"""

import argparse
import contextlib
import gc
import hashlib
import importlib.machinery
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
import types
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from lines_of_tests import PACKAGE, ROOT, Coverage, Tracer
from marked import put
from mutants import Mutant, mutants, mutated

#: files whose tests are about memory; those that run whole engines for long are left out
TESTS = (
    "arena broken_invariants buddy compaction_worth conservation contiguous contiguous_model counted_runs "
    "cow_bills eviction exhaustive explain_oom faults forwarding fragmentation_measures group_pools "
    "observation paged paged_cow paged_defrag peer_cases_memory pooled prefix_cache random_walks run_pool "
    "scheduler_cases shadow tiny_worlds version_rules"
)
_ARGUMENTS = ("-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:benchmark", "--no-header", "-W", "ignore")


class Runner:
    """Runs mutants against the tests that ``coverage`` knows, each in a process of its own."""

    def __init__(self, coverage: Coverage, budget_s: float) -> None:
        self.coverage = coverage
        self._budget_s = budget_s
        self._sound: dict[str, bool] = {}
        self._functions: dict[tuple[str, str, int], list[types.FunctionType]] = defaultdict(list)
        gc.unfreeze()  # what a run has set aside is looked at, too
        for one in gc.get_objects():
            if isinstance(one, types.FunctionType) and one.__code__.co_filename.startswith(str(PACKAGE)):
                code = one.__code__
                self._functions[Path(code.co_filename).name, code.co_name, code.co_firstlineno].append(one)

    def run(self, path: Path, mutant: Mutant) -> dict[str, Any]:
        """Whether the mutant was noticed, and by which test. Tests that fail by themselves in a fork do not count."""
        started = time.perf_counter()
        verdict, by, tests = "killed", "", self.coverage.reaching(path, mutant, self._budget_s)
        while True:
            tests = [item for item in tests if self._sound.get(item.nodeid, True)]
            if not tests:
                verdict, by = "not reached", ""
            elif mutant.function is None:
                verdict, by = _afresh(path, mutant, tests, self._limit_s(tests))
            else:
                verdict, by = self._forked(path, mutant, tests)
            if verdict != "killed" or self._passes(by, tests):
                break
        self.coverage.kills[by] += verdict == "killed"
        return {"verdict": verdict, "by": by, "tests": len(tests), "seconds": round(time.perf_counter() - started, 2)}

    def _limit_s(self, tests: Sequence[pytest.Item]) -> float:
        return 60 + 10 * sum(self.coverage.seconds[item.nodeid] for item in tests)

    def _passes(self, name: str, tests: Sequence[pytest.Item]) -> bool:
        """Whether the test that has noticed a mutant passes without it."""
        for item in tests:
            if item.nodeid == name and name not in self._sound:
                self._sound[name] = self._forked(None, None, [item])[0] == "survived"
        return self._sound.get(name, True)

    def _forked(self, path: Path | None, mutant: Mutant | None, tests: list[pytest.Item]) -> tuple[str, str]:
        """In a process that names each test before it runs it, and says in the end what has become of the mutant."""
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            os.setpgid(0, 0)
            verdict = self._in_child(path, mutant, tests, writing)
            os.write(writing, f"{verdict}\n".encode())
            os._exit(0)
        os.close(writing)
        answer = _all_of(reading, self._limit_s(tests))
        os.close(reading)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        last = answer.splitlines()[-1] if answer else ""
        verdict, tab, by = last.partition("\t")
        # who has not come to an end was killed by the test it was running: a crash, or one that has become endless
        return (verdict, by) if tab else ("killed", last)

    def _in_child(self, path: Path | None, mutant: Mutant | None, tests: Sequence[pytest.Item], writing: int) -> str:
        from _pytest.runner import runtestprotocol

        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        try:
            if path is not None and mutant is not None:
                self._replace_code(path, mutant)
        except Exception as error:
            return f"error\t{error!r}"
        for item, following in zip(tests, [*tests[1:], None], strict=True):
            # a test that has become endless ends the process by its signal, however little of the processor it gets
            os.write(writing, f"{item.nodeid}\n".encode())
            signal.setitimer(signal.ITIMER_VIRTUAL, 10 + 4 * self.coverage.seconds[item.nodeid])
            for report in runtestprotocol(item, log=False, nextitem=following):
                if report.failed:
                    return f"killed\t{item.nodeid}"
        return "survived\t"

    def _replace_code(self, path: Path, mutant: Mutant) -> None:
        """Give the mutant's function, wherever it is referred to, the mutant's code."""
        assert mutant.function is not None
        code = compile(mutated(path.read_text(), mutant.number), str(path), "exec")
        new = next(one for one in _codes(code) if (one.co_name, one.co_firstlineno) == mutant.function)
        functions = self._functions[path.name, *mutant.function]
        if not functions:
            raise LookupError(f"no function {mutant.function} is loaded")
        for one in functions:
            one.__code__ = new


def _all_of(reading: int, limit_s: float) -> str:
    """What comes out of a pipe until it is closed, or the time is up."""
    parts: list[bytes] = []
    end = time.monotonic() + limit_s
    while select.select([reading], [], [], max(0.0, end - time.monotonic()))[0]:
        part = os.read(reading, 65536)
        if not part:
            break
        parts.append(part)
    return b"".join(parts).decode()


def _afresh(path: Path, mutant: Mutant, tests: Sequence[pytest.Item], limit_s: float) -> tuple[str, str]:
    """Outside of functions: import again with the mutant in place, and run the tests of the file."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as names:
        names.write("\n".join(item.nodeid for item in tests))
        names.flush()
        words = [sys.executable, __file__, "--static", f"{path}:{mutant.number}:{names.name}"]
        try:
            limit_s += 20
            ended = subprocess.run(words, capture_output=True, text=True, timeout=limit_s, cwd=ROOT, check=False)
        except subprocess.TimeoutExpired:
            return "killed", "time limit"
    return ("survived", "") if ended.returncode == 0 else ("killed", "fresh import")


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant
            yield from _codes(constant)


def run_static(target: str) -> int:
    """Import the package with one mutant in place and run the tests named in a file."""
    name, number, names = target.split(":")
    path = Path(name)
    original = importlib.machinery.SourceFileLoader.get_code

    def get_code(loader: Any, fullname: str) -> Any:
        if loader.path == str(path):
            return compile(mutated(path.read_text(), int(number)), str(path), "exec")
        return original(loader, fullname)

    importlib.machinery.SourceFileLoader.get_code = get_code  # type: ignore[assignment]
    return int(pytest.main([*_ARGUMENTS, "-x", f"@{names}"], plugins=[Tracer(Coverage())]))


def _files(names: str = TESTS) -> list[str]:
    paths = [ROOT / "tests" / f"test_{name}.py" for name in names.split()]
    if missing := [path.name for path in paths if not path.is_file()]:
        sys.exit(f"there is no such file of tests: {', '.join(missing)}")
    return [str(path) for path in paths]


def _digests(names: str) -> dict[str, str]:
    """Of each test file, together with the package: as long as it stays, so do the lines that its tests run."""
    package = b"".join(path.read_bytes() for path in sorted(PACKAGE.glob("*.py")))
    digests = {}
    for name in _files(names):
        content = hashlib.sha256(package + Path(name).read_bytes()).hexdigest()
        digests[Path(name).relative_to(ROOT).as_posix()] = content
    return digests


# ---- the journal and the table


def key_of(path: Path, mutant: Mutant) -> str:
    """Names a mutant of a file as it is now; a changed file has other mutants."""
    text = f"{mutant.number}:{path.name}:{path.read_text()}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def read_journal(path: Path) -> dict[str, dict[str, Any]]:
    """The newest entry of each mutant."""
    if not path.is_file():
        return {}
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    return {entry["key"]: entry for entry in entries}


def table(entries: Iterable[dict[str, Any]], sizes: Counter[str]) -> str:
    """Killed and surviving mutants, module by module, as Markdown; ``sizes`` says how many mutants each module has."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for entry in entries:
        counts[entry["module"]][entry["verdict"]] += 1
    lines = ["| module | mutants | tried | killed | survived | not reached |", "|---|---:|---:|---:|---:|---:|"]
    for module in sorted(counts):
        one = counts[module]
        cells = [sizes[module], one.total(), one["killed"], one["survived"], one["not reached"] + one["error"]]
        lines.append(f"| {' | '.join([module, *(f'{cell:,}' for cell in cells)])} |")
    share, margin = estimate(counts, sizes)
    lines.append(f"\nkilled of all {sizes.total():,}: {100 * share:.1f} % +- {100 * margin:.1f} (95 %)")
    return "\n".join(lines)


def estimate(counts: dict[str, Counter[str]], sizes: Counter[str]) -> tuple[float, float]:
    """Share of all mutants that are killed, and half of its 95 % interval: modules are strata, drawn without return.

    W. G. Cochran, Sampling Techniques (3rd ed.), equations 5.1 and 5.14; a stratum's share is taken with one more
    killed and one more surviving mutant where its variance is estimated, so that none looks certain. Modules of which
    nothing was tried are left out.
    """
    total = sum(sizes[module] for module in counts)
    share = variance = 0.0
    for module, one in counts.items():
        tried, size = one.total(), sizes[module]
        share += size / total * one["killed"] / tried
        careful = (one["killed"] + 1) / (tried + 2)
        variance += (size / total) ** 2 * (1 - tried / size) * careful * (1 - careful) / tried
    return share, 1.96 * variance**0.5


def work(options: argparse.Namespace, paths: Sequence[Path]) -> None:
    """Run the mutants that the journal does not have."""
    known = read_journal(options.out)
    coverage = Coverage()
    digests = _digests(options.tests)
    reached = options.out.with_suffix(".lines.json")
    coverage.read(reached, digests)

    def run_mutants() -> None:
        coverage.write(reached, digests)
        _run_mutants(options, paths, known, Runner(coverage, options.budget_s))

    code = pytest.main([*_ARGUMENTS, *_files(options.tests)], plugins=[Tracer(coverage, run_mutants)])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        sys.exit(f"the tests fail without any mutant (pytest ended with {int(code)})")


def _run_mutants(
    options: argparse.Namespace, paths: Sequence[Path], known: dict[str, dict[str, Any]], runner: Runner
) -> None:
    with options.out.open("a") as journal:
        for key, path, mutant in chosen(paths, options.sample, options.salt):
            if key in known and (not options.again or known[key]["verdict"] == "killed"):
                continue
            found = {"key": key, "module": path.stem, "line": mutant.line, "what": mutant.what}
            found |= runner.run(path, mutant)
            journal.write(json.dumps(found) + "\n")
            journal.flush()


def chosen(paths: Sequence[Path], sample: int | None, salt: str) -> list[tuple[str, Path, Mutant]]:
    """Mutants in an order as good as random, so that a run cut short is a fair sample; slow ones come last.

    With ``sample``, each module gives its share of so many, but at least three. Another ``salt`` draws others.
    """
    jobs = {path: [(key_of(path, mutant), path, mutant) for mutant in mutants(path.read_text())] for path in paths}
    total = sum(map(len, jobs.values()))
    taken = []
    for own in jobs.values():
        count = len(own) if sample is None else max(3, round(sample * len(own) / total))
        taken += sorted(own, key=lambda job: _drawn(job[0], salt))[:count]
    return sorted(taken, key=lambda job: (job[2].function is None, _drawn(job[0], salt)))


def _drawn(key: str, salt: str) -> str:
    return hashlib.sha256(f"{salt}:{key}".encode()).hexdigest()


def main() -> None:
    """Parse the options, work, print the table and what survived."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("mutation.jsonl"), help="journal; goes on where it stopped")
    parser.add_argument("--module", action="append", help="only this module of the package; repeatable")
    parser.add_argument("--tests", default=TESTS, help="names of files of tests, in one word with spaces")
    parser.add_argument("--budget-s", type=float, default=40.0, help="seconds of tests for one mutant")
    parser.add_argument("--again", action="store_true", help="try again those that were not killed")
    parser.add_argument("--sample", type=int, help="about so many, of each module its share")
    parser.add_argument("--salt", default="", help="any text: another one draws another sample")
    parser.add_argument("--table", action="store_true", help="only print what the journal knows")
    parser.add_argument("--page", type=Path, help="put the table there")
    parser.add_argument("--static", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.static:
        sys.exit(run_static(options.static))
    paths = [path for path in sorted(PACKAGE.glob("*.py")) if not options.module or path.stem in options.module]
    if not options.table:
        work(options, paths)
    known = read_journal(options.out)
    entries = [known[key] for key, *_ in chosen(paths, options.sample, options.salt) if key in known]
    sizes = Counter({path.stem: len(mutants(path.read_text())) for path in paths})
    for entry in entries:
        if entry["verdict"] != "killed":
            print(f"{entry['verdict']}: {entry['module']}.py:{entry['line']}: {entry['what']} {entry['by']}")
    print(table(entries, sizes))
    if options.page is not None:
        put(options.page, "mutation", table(entries, sizes))


if __name__ == "__main__":
    main()
