"""Seconds of a launch from every length, in one walk over the batch: the closed form for two tile buffers.

Pages of all tasks (one head of one sequence) lie one behind the other and are dealt to the cores in equal contiguous
shares (see ``kernel_deal``). With two buffers a tile is loaded while the one before is worked on, and the next load
waits for both: so a core's time is a sum over its tiles, of its own load or the work on the tile before, if longer.
Full pages are alike, and so are the tasks of a sequence; the walk takes each sequence and each core once.

A load takes longer the more cores stream. The walk is taken for all of them and for as few as leave a tile to the
core's own port; in between seconds are all but linear. ``core_race`` lets the cores go through what they were dealt.
"""

from simulator.kernels.compute import FRACTAL
from simulator.kernels.core_race import Course, Finish, race
from simulator.kernels.kernel_form import KernelForm

#: of one sequence: pages read, tokens in the last one, tokens in the first one when there are several, whether it grows
Row = tuple[int, int, int, bool]


class CoreWalk:
    """A kernel with two tile buffers that takes pages one by one and looks their ids up in the cache."""

    def __init__(self, form: KernelForm, cores: int, window: int = 0) -> None:
        plan, dma = form.plan, form.dma
        part_bytes = form.step_token_bytes * plan.reload / plan.parts
        self.cores: int = cores
        self.window: int = window
        self.heads: int = plan.steps_per_group
        self.page: int = plan.page_tokens
        self.parts: int = plan.parts
        self.fractal: int = FRACTAL
        self.issue_s: float = dma.issue_s
        self.first_s: float = form.first_lookup_s + dma.issue_s
        self.lone_s: float = max(dma.issue_s, dma.latency_s / dma.depth)
        self.shared_s: float = dma.startup_s / dma.depth
        self.port_s: float = part_bytes / dma.port_bandwidth
        self.band_s: float = part_bytes / dma.shared_bandwidth
        self.query_tokens: float = form.query_bytes / part_bytes
        self.slice_s: float = form.compute.slice_s / plan.parts

    def seconds(self, lengths: list[int]) -> float:
        """When the last core is done; ``lengths`` are in the order in which pages are dealt, each at least 1."""
        return self.finish(lengths).seconds

    def finish(self, lengths: list[int]) -> Finish:
        """When every core is done."""
        page = self.page
        rows = [self._windowed(length) if self.window else _row(length, page) for length in lengths]
        dealt = self.heads * sum([pages for pages, _, _, _ in rows])
        used = min(self.cores, dealt)
        few = self._lone_cores(min(max(lengths), page), used)
        many_course = _Walk(self, float(used)).over(rows, dealt, used)
        few_course = many_course if few >= used else _Walk(self, few).over(rows, dealt, used)
        # A token more takes its bytes' share of the bandwidth, or its part of a slice's work, at least.
        token_s = self.parts * max(self.port_s, self.band_s * used, self.slice_s / self.fractal)
        return Finish(race(many_course, few_course, few), [token_s * ends for ends in many_course.ends])

    def _windowed(self, length: int) -> Row:
        """A window cuts into the first page: it is as long as what is left of it."""
        page = self.page
        if length <= self.window:
            return _row(length, page)
        before = length - self.window
        pages = -(-length // page) - before // page
        tail, cut = length - (-(-length // page) - 1) * page, before % page
        return (1, tail - cut, page, False) if pages == 1 else (pages, tail, page - cut, False)

    def _lone_cores(self, tokens: int, used: int) -> float:
        """How many may stream before a tile of ``tokens`` waits for them rather than for its own port."""
        cores = (self.lone_s + tokens * self.port_s - self.shared_s) / (self.band_s * tokens)
        return min(float(used), max(1.0, cores))


def _row(length: int, page: int) -> Row:
    pages = -(-length // page)
    return pages, length - (pages - 1) * page, page, True


class _Walk:
    """What every core takes for what it is dealt if ``streaming`` cores streamed all the time."""

    def __init__(self, kernel: CoreWalk, streaming: float) -> None:
        self.kernel = kernel
        self.band_s: float = kernel.band_s * streaming
        self.query_s: float = self._load_s(kernel.query_tokens)
        self.full_s: float = self._load_s(float(kernel.page))
        self.full_work_s: float = self._work_s(kernel.page)
        self.step_s: float = max(self.full_s, self.full_work_s)
        self.course = Course()
        # The tile before: whether there is one, work on it, and by how much that outlasts the load of the same size.
        self.first: bool = True
        self.before_s: float = 0.0
        self.spare_s: float = 0.0

    def over(self, rows: list[Row], dealt: int, used: int) -> Course:
        """Deal ``dealt`` pages to ``used`` cores."""
        kernel, full_work_s, step_s = self.kernel, self.full_work_s, self.step_s
        heads, parts, page, slice_s, fractal = kernel.heads, kernel.parts, kernel.page, kernel.slice_s, kernel.fractal
        lone_s, port_s, shared_s, band_s = kernel.lone_s, kernel.port_s, kernel.shared_s, self.band_s
        core = place = ends = 0
        edge = dealt // used
        for pages, tail, head, grows in rows:
            alone_s, tail_s = lone_s + tail * port_s, shared_s + tail * band_s
            tail_s = tail_s if tail_s > alone_s else alone_s
            work_s = -(-tail // fractal) * slice_s
            end_s = (parts - 1) * (tail_s if tail_s > work_s else work_s)
            head_s, rest_s = tail_s, 0.0
            if pages > 1:
                end_s += tail_s if tail_s > full_work_s else full_work_s
                head_s, rest_s = self.full_s, (parts * (pages - 1) - 1) * step_s
                if head != page:
                    head_s = self._load_s(float(head))
                    rest_s += (parts - 1) * (max(head_s, self._work_s(head)) - step_s)
            left, inside = heads * pages, 0
            while left:
                room = edge - place
                count = pages - inside
                if count > room:  # the task goes on on the next core
                    count = room
                    self._part(head_s if inside == 0 else self.full_s, (parts * count - 1) * step_s)
                    inside += count
                    self.before_s, self.spare_s = full_work_s, 0.0
                else:
                    if inside:
                        self._part(self.full_s if count > 1 else tail_s, self._behind_s(count, end_s, tail_s, work_s))
                    else:
                        self._part(head_s, rest_s + end_s)
                    inside = 0
                    ends += grows
                    self.before_s, self.spare_s = work_s, work_s - tail_s if work_s > tail_s else 0.0
                    more = (min(left, room) - count) // pages
                    if more > 0:
                        self.course.add(more * (self._lead_s(head_s) + rest_s + end_s))
                        count += more * pages
                        ends += more * grows
                place += count
                left -= count
                if place == edge:
                    self.course.close(self.before_s, ends)
                    self.first, ends = True, 0
                    core += 1
                    edge = (core + 1) * dealt // used
        return self.course

    def _behind_s(self, count: int, end_s: float, tail_s: float, work_s: float) -> float:
        """Of the tiles behind the first one of a task's last ``count`` pages."""
        parts = self.kernel.parts
        if count > 1:
            return (parts * (count - 1) - 1) * self.step_s + end_s
        return (parts - 1) * max(tail_s, work_s)

    def _part(self, head_s: float, rest_s: float) -> None:
        """Pages of one task: their first tile, then the others."""
        if self.first:
            self.first = False
            lead_s = self.kernel.issue_s + max(self.query_s, self.kernel.first_s) + head_s
        else:
            lead_s = self._lead_s(head_s)
        self.course.add(lead_s + rest_s)

    def _lead_s(self, head_s: float) -> float:
        """Of a task's first tile: its query rows need no buffer, so they come while work outlasts a load."""
        query_s = self.query_s - self.spare_s if self.query_s > self.spare_s else 0.0
        lead_s = query_s + head_s
        return lead_s if lead_s > self.before_s else self.before_s

    def _load_s(self, tokens: float) -> float:
        """Of one tile: what the core alone needs, or its share of what all have."""
        kernel = self.kernel
        return max(kernel.lone_s + tokens * kernel.port_s, kernel.shared_s + tokens * self.band_s)

    def _work_s(self, tokens: int) -> float:
        """On chip for one tile, in whole slices of 16 tokens."""
        return -(-tokens // self.kernel.fractal) * self.kernel.slice_s
