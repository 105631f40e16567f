"""An independent record of who wrote what where, against which every page table can be checked.

The shadow knows nothing of reference counts, free lists or hits. It knows what a sequence *should* find at each of
its positions (its ``Lineage``), it follows writes and copies address by address, and it reads through the page
tables as a kernel would. So an allocator that hands a page out twice, forgets a copy or rewrites a table wrongly
makes a sequence read something else than its own history, and the shadow says who, where and what.

Addresses are token slots of pages in a paged pool and bytes in a contiguous one. Host memory has negative addresses.
"""

from simulator.allocators.base import Holding
from simulator.allocators.lineage import Lineage, Name, lineage_of
from simulator.allocators.violations import Violation


class Story:
    """What is known of one sequence: its ``lineage``, and how many of its positions have been ``written``."""

    __slots__ = ("lineage", "written")

    def __init__(self, lineage: Lineage, written: int) -> None:
        self.lineage = lineage
        self.written = written


class ShadowMemory:
    """The record of one pool. ``page_shadow`` and ``range_shadow`` know how tables name addresses."""

    def __init__(self) -> None:
        self._stories: dict[int, Story] = {}

    # ---- what happens

    def begin(self, holding: Holding) -> None:
        """A sequence has been admitted, with ``hit_tokens`` of its KV in place."""
        self._tell(holding, lineage_of(holding.demand), holding.hit_tokens)

    def forked(self, parent: Holding, child: Holding, length: int) -> None:
        """``child`` goes on from the first ``length`` tokens of ``parent``; both now write from there on."""
        self.write_up_to(parent, length)
        story = self._stories[id(parent)]
        story.written = length
        self._tell(child, lineage_of(child.demand, story.lineage.cut(length)), length)

    def end(self, holding: Holding) -> None:
        """A sequence is over. What it wrote stays, as in real memory."""
        del self._stories[id(holding)]

    def written(self, holding: Holding) -> int:
        """Leading positions of ``holding`` whose KV is known to be there."""
        return self._stories[id(holding)].written

    def write_up_to(self, holding: Holding, length: int) -> None:
        """The kernel has computed ``holding`` up to ``length`` tokens and stored KV through its table."""
        first = self.written(holding)
        if length > first:
            self.write(holding, first, length)
            self._stories[id(holding)].written = length

    def write(self, holding: Holding, first: int, last: int) -> None:
        """KV of positions ``first .. last - 1`` is stored where the table of ``holding`` says."""
        raise NotImplementedError

    def copy(self, source: int, target: int, count: int) -> None:
        """An allocator has copied; arguments as in ``base.CopyHook``."""
        raise NotImplementedError

    # ---- what is read

    def verify_read(self, holding: Holding, length: int) -> Violation | None:
        """Read the first ``length`` tokens through the table; the first place where something else is found."""
        raise NotImplementedError

    def verify_view(self, holding: Holding, position: int) -> Violation | None:
        """Whether the token at ``position``, and so every later one, still finds all that it can see."""
        del holding, position
        return None

    # ---- how

    def _tell(self, holding: Holding, lineage: Lineage, written: int) -> None:
        self._stories[id(holding)] = Story(lineage, written)


def wrong_read(holding: Holding, position: int, where: str, what: str, *, page: int = -1) -> Violation:
    """``holding`` finds ``what`` at its ``position``, which its table says is ``where``."""
    request_id = holding.demand.request_id
    message = f"request {request_id} reads its position {position} at {where} and finds {what}"
    return Violation("wrong_read", request_id, page, message)


NOTHING = "nothing that was ever written"


def described(name: Name, position: int, layers: str = "") -> str:
    """Content in words."""
    sample = f" (sample {name[2] - 1})" if name[2] > 1 else ""
    return f"position {position} of {name[0]} {name[1]}{sample}{layers}"
