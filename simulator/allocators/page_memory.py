"""What every token slot of a memory made of pages holds: which content, and which position of it.

A content is a number. Nearly every page holds one content from its first slot on, so a page is a short list of pieces,
and asking whether it holds what it should takes one look.
"""


class Piece:
    """Slots ``start .. end - 1`` of a page; slot ``s`` holds position ``origin + s`` of ``content``. Never changed."""

    __slots__ = ("content", "end", "origin", "start")

    def __init__(self, start: int, end: int, content: int, origin: int) -> None:
        self.start = start
        self.end = end
        self.content = content
        self.origin = origin

    def cut(self, start: int, end: int) -> "Piece":
        """The part of it that lies in ``start .. end - 1``, which must not be empty."""
        return Piece(max(self.start, start), min(self.end, end), self.content, self.origin)


class PageMemory:
    """Pages by their number, which may be negative (host memory); nothing was ever written where there is no piece."""

    def __init__(self) -> None:
        self._pages: dict[int, list[Piece]] = {}

    def pieces(self, page: int) -> list[Piece]:
        """What ``page`` holds, in order of slots."""
        return self._pages.get(page, [])

    def write(self, page: int, new: Piece) -> None:
        """Let the slots of ``new`` hold its content, whatever was there before."""
        start, end = new.start, new.end
        left: list[Piece] = []
        right: list[Piece] = []
        for piece in self._pages.get(page, []):
            if piece.start < start:
                left.append(piece.cut(piece.start, start))
            if piece.end > end:
                right.append(piece.cut(end, piece.end))
        if left:
            last = left[-1]
            if last.end == start and last.content == new.content and last.origin == new.origin:
                left[-1] = Piece(last.start, end, new.content, new.origin)
                self._pages[page] = left + right
                return
        left.append(new)
        self._pages[page] = left + right

    def copy(self, source: int, target: int) -> None:
        """Let page ``target`` hold what page ``source`` holds now."""
        pieces = self._pages.get(source)
        if pieces is not None:
            self._pages[target] = pieces  # lists are replaced, never changed
        else:
            self._pages.pop(target, None)

    def unlike(self, page: int, start: int, end: int, content: int, origin: int) -> int:
        """The first of the slots ``start .. end - 1`` that holds anything else than ``Piece`` says; -1 if none does."""
        for piece in self._pages.get(page, []):
            if piece.end <= start:
                continue
            if piece.start > start or piece.content != content or piece.origin != origin:
                return start
            start = piece.end
            if start >= end:
                return -1
        return start
