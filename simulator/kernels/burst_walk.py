"""Seconds of a launch whose adjacent pages merge, from every length: transfer by transfer where they differ.

A core's share falls into parts of tasks (one head of one sequence), these into runs of adjacent pages, and a run into
bursts, at most as long as half the tile buffer. A share that begins inside a run, a task that ends inside one, and a
run that is longer than a burst leave short bursts behind. With one tile buffer times add up. With two, three units
hand transfers on: the scalar unit looks up every page id of a burst before it issues it and is at most two transfers
ahead, the queue waits for a buffer, and the work frees it. So the times of a burst depend on the bursts before it, as
recurrences; where bursts are alike every unit soon goes on at one pace, and the rest of them is a multiple.

As in ``kernel_walk`` shares are walked twice, for all cores and for few, and ``core_race`` lets the cores end.
"""

from math import ceil, floor

from simulator.kernels.compute import FRACTAL
from simulator.kernels.core_race import Course, Finish, race
from simulator.kernels.core_units import Units
from simulator.kernels.kernel_form import KernelForm
from simulator.kernels.tiles import TABLE_ENTRY_BYTES

#: of one sequence: columns of its first page read and behind its last, tokens not read in the first and last of them,
#: whether a step makes it longer
Row = tuple[int, int, int, int, bool]


class BurstWalk:
    """A kernel of one or two tile buffers, for pages in runs of ``run_pages`` on average."""

    def __init__(self, form: KernelForm, cores: int, run_pages: float, window: int = 0) -> None:
        plan, dma = form.plan, form.dma
        self.form = form
        self.buffers: int = plan.buffers
        self.parts: int = plan.parts
        self.line_entries: int = form.line_entries
        self.copies_rows: bool = form.table == "l1"
        self.issue_s: float = dma.issue_s
        self.lookup_s: float = form.lookup_s
        self.cold_s: float = form.miss_s - form.hit_s if form.table == "dcache" else 0.0
        self.slice_s: float = form.compute.slice_s / plan.parts
        self.cores: int = cores
        self.window: int = window
        self.run_pages: float = run_pages
        self.most: int = plan.max_group_pages
        self.heads: int = plan.steps_per_group
        self.page: int = plan.page_tokens
        self.part_bytes: float = form.step_token_bytes * plan.reload / plan.parts
        self.fractal: int = FRACTAL
        self.latency_s: float = dma.latency_s / dma.depth
        self.startup_s: float = dma.startup_s / dma.depth
        self.port: float = dma.port_bandwidth
        self.bandwidth: float = dma.shared_bandwidth
        self.lone_s: float = max(dma.issue_s, self.latency_s)
        self.known_bursts: dict[int, list[int]] = {}

    def seconds(self, lengths: list[int]) -> float:
        """When the last core is done; ``lengths`` are in the order in which pages are dealt, each at least 1."""
        return self.finish(lengths).seconds

    def finish(self, lengths: list[int]) -> Finish:
        """When every core is done."""
        rows = [self._row(length) for length in lengths]
        dealt = self.heads * sum([behind - first for first, behind, _, _, _ in rows])
        used = min(self.cores, dealt)
        return self._race(rows, dealt, used, min(max(lengths), self.page * min(self.most, ceil(self.run_pages))))

    def _race(self, rows: list[Row], dealt: int, used: int, tokens: int) -> Finish:
        """Over ``used`` cores; a burst has at most ``tokens``."""
        few = self._lone_cores(tokens, used)
        many_course = Walk(self, float(used)).over(rows, dealt, used)
        few_course = many_course if few >= used else Walk(self, few).over(rows, dealt, used)
        return self._finish(race(many_course, few_course, few), many_course.ends)

    def _finish(self, done_s: list[float], ends: list[int]) -> Finish:
        """A token more takes its bytes' share of the bandwidth, or its part of a slice's work, at least."""
        band_s = len(done_s) / self.form.dma.shared_bandwidth
        byte_s = max(1.0 / self.form.dma.port_bandwidth, band_s)
        token_s = self.parts * max(self.part_bytes * byte_s, self.slice_s / FRACTAL)
        return Finish(done_s, [token_s * count for count in ends])

    def _row(self, length: int) -> Row:
        page, before = self.page, max(0, length - self.window) if self.window else 0
        behind = -(-length // page)
        return before // page, behind, before % page, behind * page - length, not before

    def _lone_cores(self, tokens: int, used: int) -> float:
        """How many may stream before a burst of ``tokens`` waits for them rather than for its own port."""
        dma, size = self.form.dma, tokens * self.part_bytes
        alone_s = self.lone_s + size / dma.port_bandwidth
        return min(float(used), max(1.0, (alone_s - dma.startup_s / dma.depth) * dma.shared_bandwidth / size))

    def bursts(self, pages: int) -> list[int]:
        """Pages of the bursts of a run, or of a part of one."""
        found = self.known_bursts.get(pages)
        if found is None:
            whole, rest = divmod(pages, self.most)
            found = self.known_bursts[pages] = [self.most] * whole + ([rest] if rest else [])
        return found


class Walk:
    """What every core takes for what it is dealt if ``streaming`` cores streamed all the time."""

    def __init__(self, kernel: BurstWalk, streaming: float) -> None:
        form = kernel.form
        self.kernel, self.form, self.streaming = kernel, form, streaming
        self.query_s: float = self._load_s(form.query_bytes)
        self.units = self._units()
        self.first: bool = True
        self.row: Row = (0, 0, 0, 0, True)
        self.course = Course()

    def _units(self) -> Units:
        """Those of the next core."""
        return Units(self.kernel.buffers)

    def _load_s(self, size_bytes: float) -> float:
        """``Dma.seconds`` at this number of streaming cores."""
        kernel = self.kernel
        alone_s = kernel.latency_s + size_bytes / kernel.port
        shared_s = kernel.startup_s + size_bytes * self.streaming / kernel.bandwidth
        longer_s = shared_s if shared_s > alone_s else alone_s
        return longer_s if longer_s > kernel.issue_s else kernel.issue_s

    def over(self, rows: list[Row], dealt: int, used: int) -> Course:
        """Deal ``dealt`` pages to ``used`` cores."""
        core = place = ends = 0
        edge = dealt // used
        for row in rows:
            self.row = row
            start, behind, grows = row[0], row[1], row[4]
            pages = behind - start
            left, inside = self.kernel.heads * pages, 0
            while left:
                room = edge - place
                if inside or room < pages:
                    count = min(pages - inside, room)
                    self._piece(start + inside, start + inside + count, 1)
                    inside = (inside + count) % pages
                    ends += grows and inside == 0
                else:
                    times = min(left, room) // pages
                    count = times * pages
                    self._piece(start, behind, times)
                    ends += times * grows
                place += count
                left -= count
                if place == edge:
                    self.course.add(self.units.end_s - self.units.progress_s)
                    self.course.close(max(0.0, self.units.worked_s - self.units.end_s), ends)
                    self.units, self.first, ends = self._units(), True, 0
                    core += 1
                    edge = (core + 1) * dealt // used
        return self.course

    def _piece(self, first: int, behind: int, times: int) -> None:
        """Pages ``first`` to ``behind`` of ``times`` tasks."""
        units, began_s = self.units, self.units.progress_s
        for done in range(1, times + 1):
            before = units.clocks()
            self._task(first, behind)
            if done < times and units.go_on(before, times - done):
                break
        self.course.add(units.progress_s - began_s)

    def _task(self, first: int, behind: int) -> None:
        units, kernel = self.units, self.kernel
        units.fetch(kernel.issue_s, self.query_s, False)
        if kernel.copies_rows:
            row_s = self._load_s((behind - first) * TABLE_ENTRY_BYTES)
            units.fetch(kernel.issue_s, row_s, self.first)
        self.first = False
        run = kernel.run_pages
        last_run = floor((behind - 1) / run)
        next_run = floor(first / run) + 1
        if next_run > last_run:
            self._some(first, behind, opens=True)
            return
        at, last = max(first + 1, ceil(next_run * run)), ceil(last_run * run)
        self._some(first, at, opens=True)
        self._runs(at, last, last_run - next_run)
        self._some(last, behind, opens=False)

    def _some(self, first: int, behind: int, *, opens: bool) -> None:
        """Pages of one run, the task's first or last one among them; what ``opens`` a task reads any line anew."""
        for pages in self.kernel.bursts(behind - first):
            lines = self._lines_begun(first, first + pages)
            if opens and first % self.kernel.line_entries:
                lines += 1
            self._burst(first, pages, lines)
            first, opens = first + pages, False

    def _runs(self, first: int, behind: int, runs: int) -> None:
        """Whole runs between a task's first and last one: as many long ones as make their mean."""
        if runs < 1:
            return
        short, longer = divmod(behind - first, runs)
        lines = self._lines_begun(first, behind) / (behind - first)
        for pages, count in ((short, runs - longer), (short + 1, longer)):
            if count:
                self._alike(pages, count, lines)

    def _lines_begun(self, first: int, behind: int) -> int:
        """Cache lines of the page table that begin among columns ``first`` to ``behind``."""
        entries = self.kernel.line_entries
        return -(-behind // entries) - -(-first // entries)

    def _alike(self, pages: int, count: int, lines: float) -> None:
        """``count`` runs of ``pages`` whole pages, each page with its share of ``lines`` that are read."""
        units, page, bursts = self.units, self.kernel.page, self.kernel.bursts(pages)
        for done in range(1, count + 1):
            before = units.clocks()
            for burst in bursts:
                self._load(burst, burst * page, burst * lines)
            if done < count and units.go_on(before, count - done):
                return

    def _burst(self, column: int, pages: int, lines: int) -> None:
        """``pages`` pages from ``column`` on, for which ``lines`` are read."""
        first, behind, head_cut, tail_cut, _ = self.row
        tokens = pages * self.kernel.page
        if column == first:
            tokens -= head_cut
        if column + pages == behind:
            tokens -= tail_cut
        self._load(pages, tokens, float(lines))

    def _load(self, pages: int, tokens: int, lines: float) -> None:
        """The tiles of one burst."""
        kernel, units = self.kernel, self.units
        load_s = self._load_s(tokens * kernel.part_bytes)
        work_s = -(-tokens // kernel.fractal) * kernel.slice_s
        before_s = kernel.issue_s + pages * kernel.lookup_s
        units.tile(before_s + lines * kernel.cold_s, load_s, work_s)
        for _ in range(1, kernel.parts):
            units.tile(before_s, load_s, work_s)
