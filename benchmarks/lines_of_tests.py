"""Which tests run which lines of the allocators, and how long each takes: noted once, kept in a file."""

import json
import sys
import time
import types
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from mutants import Mutant

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "simulator" / "allocators"


@dataclass
class Coverage:
    """Which tests run which lines, how long each takes (of the processor), and how many mutants each has noticed."""

    items: list[pytest.Item] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    lines: dict[tuple[str, int], set[str]] = field(default_factory=lambda: defaultdict(set))
    kills: Counter[str] = field(default_factory=Counter)

    def reaching(self, path: Path, mutant: Mutant, budget_s: float) -> list[pytest.Item]:
        """Tests of the mutant's line (or, outside of functions, of its file), within ``budget_s`` in all.

        Those that notice much come first, then the quickest.
        """
        if mutant.function is not None:
            names = self.lines.get((path.name, mutant.line), set())
        else:
            names = {name for (file, _), run in self.lines.items() if file == path.name for name in run}
        chosen = [item for item in self.items if item.nodeid in names]
        chosen.sort(key=lambda item: (-self.kills[item.nodeid], self.seconds[item.nodeid]))
        taken, total_s = [], 0.0
        for item in chosen:
            total_s += self.seconds[item.nodeid]
            if total_s <= budget_s or not taken:
                taken.append(item)
        return taken

    def read(self, path: Path, digests: dict[str, str]) -> None:
        """Take over what an earlier run noted about test files that are as they were."""
        known = json.loads(path.read_text()) if path.is_file() else {}
        for name, (seconds, lines) in known.get("tests", {}).items():
            file = name.partition("::")[0]
            if known["digests"].get(file) == digests.get(file):
                self.seconds[name] = seconds
                for place in lines:
                    self.lines[place[0], place[1]].add(name)

    def write(self, path: Path, digests: dict[str, str]) -> None:
        """Note everything for the next run."""
        by_test: dict[str, list[tuple[str, int]]] = defaultdict(list)
        for place, names in self.lines.items():
            for name in names:
                by_test[name].append(place)
        tests = {name: [seconds, sorted(by_test[name])] for name, seconds in self.seconds.items()}
        path.write_text(json.dumps({"digests": digests, "tests": tests}))


class Tracer:
    """A pytest plugin: collects, quietens hypothesis, and notes lines and times of tests that are not known yet.

    ``afterwards`` is called while pytest is still set up: no test can run later.
    """

    def __init__(self, coverage: Coverage, afterwards: Callable[[], None] | None = None) -> None:
        self.coverage = coverage
        self._afterwards = afterwards
        self._seen: set[tuple[types.CodeType, int]] = set()
        self._left: dict[types.CodeType, int] = {}

    def pytest_collection(self) -> None:
        from hypothesis import HealthCheck, Phase, settings

        # Mistakes need not be shrunk; the same examples each time make the result repeatable.
        settings.register_profile(
            "mutation",
            deadline=None,
            derandomize=True,
            database=None,
            phases=(Phase.explicit, Phase.generate),
            suppress_health_check=list(HealthCheck),
        )
        settings.load_profile("mutation")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        self.coverage.items = list(items)
        items[:] = [item for item in items if item.nodeid not in self.coverage.seconds]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Iterator[None]:
        result = yield
        if self._afterwards is not None and not session.testsfailed:
            self._afterwards()
        return result  # type: ignore[misc]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._seen, self._left = set(), {}
        started = time.process_time()
        sys.settrace(self._enter)
        try:
            return (yield)  # type: ignore[misc]
        finally:
            sys.settrace(None)
            self.coverage.seconds[item.nodeid] = time.process_time() - started
            for code, line in self._seen:
                self.coverage.lines[Path(code.co_filename).name, line].add(item.nodeid)

    def _enter(self, frame: types.FrameType, event: str, argument: Any) -> Any:
        del event, argument
        code = frame.f_code
        left = self._left.get(code)
        if left is None:
            inside = code.co_filename.startswith(str(PACKAGE))
            left = self._left[code] = len({line for *_, line in code.co_lines()}) if inside else 0
        return self._line if left else None

    def _line(self, frame: types.FrameType, event: str, argument: Any) -> Any:
        del event, argument
        place = frame.f_code, frame.f_lineno
        if place not in self._seen:
            self._seen.add(place)
            self._left[frame.f_code] -= 1
        return self._line
