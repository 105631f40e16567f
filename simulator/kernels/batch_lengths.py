"""The lengths of a decode batch as its steps go by, and what attention takes beyond what sums over them tell.

Sums tell the seconds of a launch in a few operations, but not which core has the short sequences. How much longer the
launch takes with every length known is the batch's *skew*, known over sums. From one step to the next it hardly
changes, so it is worked out now and then: after some steps, and when sequences have come or gone. When, follows from
the steps and the batch alone, so that steps taken one by one and many at once find the same; what was worked out for
steps that were not taken after all is forgotten.
"""

from typing import Any, Final, Protocol

#: skews whose share of the launch, its floor included, is less than this are slight, or only just so
SLIGHT, JUST_SLIGHT = 0.005, 0.01
#: such a skew holds while lengths grow by this part of their mean, and as many sequences come or go
SLIGHT_GROWTH, JUST_SLIGHT_GROWTH = 1 / 16, 1 / 32
SLIGHT_CHANGES, JUST_SLIGHT_CHANGES = 1 / 4, 1 / 16
#: any other holds while lengths grow by this part of their mean, and nobody comes or goes
GROWTH: Final = 1 / 128
#: steps for which a skew holds at most
MOST_STEPS: Final = 64


#: part of a launch, its floor included, by which a core may outgrow it
OVERTAKEN = 0.005
#: where one burst on a core is more than this part of a launch, its floor included, it matters how pages are dealt
ONE_BURST = 0.01
#: pages more or less on each core than steady growth gives, from which on tasks lie elsewhere on them
DEALT_ANEW = 1 / 6
INFINITY = float("inf")


class Found:
    """A skew as it was worked out: its share of the launch; for how many steps no core outgrows the launch; by how many
    pages the batch may differ from steady growth."""

    def __init__(self, skew: float, share: float, steps: int, slack_pages: float = INFINITY) -> None:
        self.skew: float = skew
        self.share: float = share
        self.steps: int = steps
        self.slack_pages: float = slack_pages


class OffsetSource(Protocol):
    """A batch whose sequences have ``offset + step`` tokens each."""

    step: int
    size: int
    #: how many sequences have come or gone
    changes: int

    def offsets(self) -> Any:
        """The offsets of all sequences, in the order in which their pages are dealt to the cores."""
        ...


class Mark:
    """A skew, and how long it holds: from step ``start`` to before step ``until``, for at most so many ``changes``.

    And while the batch has about as many pages as steady growth gives it: sequences that come or go, or begin a page at
    the same time, deal the others' pages anew.
    """

    def __init__(self, skew: float, start: int, until: int, changes: int) -> None:
        self.skew: float = skew
        self.start: int = start
        self.until: int = until
        self.changes: int = changes
        self.pages: float = 0.0
        self.pages_a_step: float = 0.0
        self.slack_pages: float = INFINITY

    def expect(self, pages: int, pages_a_step: float, slack_pages: float) -> None:
        """Hold while the batch, which begins with ``pages``, differs by ``slack_pages`` from steady growth at most."""
        self.pages, self.pages_a_step, self.slack_pages = float(pages), pages_a_step, slack_pages

    def fits(self, step: int, pages: int) -> bool:
        """Whether the batch has about as many pages as expected."""
        return abs(pages - self.pages - (step - self.start) * self.pages_a_step) <= self.slack_pages


class Skews:
    """The skews of one batch under one cost model."""

    def __init__(self) -> None:
        self._marks: list[Mark] = []
        self._asker: object = None

    def at(self, step: int, changes: int, asker: object, pages: int) -> Mark | None:
        """What holds in ``step`` for so many ``pages``, if anything does; what begins later is forgotten."""
        marks = self._marks
        if asker is not self._asker:
            self._asker = asker
            marks.clear()
        while marks and marks[-1].start > step:
            marks.pop()
        if not marks:
            return None
        mark = marks[-1]
        return mark if step < mark.until and changes <= mark.changes and mark.fits(step, pages) else None

    def put(self, mark: Mark, step: int) -> None:
        """``mark`` holds from its start on. The batch has taken ``step``: nobody asks about it or one before again."""
        marks = self._marks
        while len(marks) > 1 and marks[1].start <= step:
            del marks[0]
        marks.append(mark)


class StepLengths:
    """The lengths of all sequences of a batch in ``steps`` (a number or an array), a row a step."""

    def __init__(self, batch: OffsetSource, skews: Skews, steps: Any) -> None:
        self._batch, self._skews, self.steps = batch, skews, steps

    def __call__(self) -> Any:
        import numpy as np

        return self._batch.offsets() + np.reshape(self.steps, (-1, 1))

    def row(self, step: int) -> list[int]:
        """The lengths in one step."""
        return (self._batch.offsets() + step).tolist()  # type: ignore[no-any-return]

    def mark(self, step: int, asker: object, pages: int) -> Mark | None:
        """What ``asker`` (a cost model) found about ``step``, if it still holds for so many ``pages``."""
        return self._skews.at(step, self._batch.changes, asker, pages)

    def remember(self, step: int, found: Found, mean_tokens: int, pages: int, page_tokens: int) -> Mark:
        """What was ``found`` about ``step``; lengths are ``mean_tokens`` on average, in ``pages`` pages."""
        growth, changes = GROWTH, 0.0
        if found.share < JUST_SLIGHT:
            slight = found.share < SLIGHT
            growth = SLIGHT_GROWTH if slight else JUST_SLIGHT_GROWTH
            changes = SLIGHT_CHANGES if slight else JUST_SLIGHT_CHANGES
        batch, steps = self._batch, max(min(int(mean_tokens * growth), found.steps), 1)
        mark = Mark(found.skew, step, step + steps, batch.changes + int(batch.size * changes))
        mark.expect(pages, batch.size / page_tokens, found.slack_pages)
        self._skews.put(mark, batch.step)
        return mark
