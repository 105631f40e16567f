"""What observation finds: something that must never happen, by request and page."""

from dataclasses import dataclass

#: violations named in one message
_NAMED = 3


@dataclass(frozen=True, slots=True)
class Violation:
    """Something that must never happen; ``page`` is -1 where there are no pages or no single one is to blame."""

    kind: str
    request_id: int
    page: int
    message: str


class VerificationError(AssertionError):
    """Memory was corrupted, lost or given away twice; ``violations`` name the requests and pages."""

    def __init__(self, violations: list[Violation]) -> None:
        self.violations = violations
        more = len(violations) - _NAMED
        texts = [violation.message for violation in violations[:_NAMED]] + ([f"and {more} more"] if more > 0 else [])
        super().__init__("; ".join(texts))
