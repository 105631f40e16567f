"""What people see of ``simulate claims``: a block of lines for each claim."""

from collections import Counter
from collections.abc import Sequence

from simulator.claims import Claim
from simulator.showing.outlet import outlet


def print_claims(claims: Sequence[Claim]) -> None:
    """How many claims hold, then each: claimed, computed, formula, verdict and why."""
    out = outlet()
    counts = Counter(claim.verdict for claim in claims)
    out.line(f"{len(claims)} claims: {', '.join(f'{count} {name}' for name, count in counts.most_common())}.")
    article = ""
    for claim in claims:
        if claim.article != article:
            article = claim.article
            out.line(f"\n{article}", heading=True)
        out.line(f"\n{claim.number}  {claim.verdict.upper()}: {claim.claim}")
        for name, text in (
            ("claimed", claim.claimed),
            ("computed", "; ".join(map(str, claim.computed))),
            ("formula", claim.formula),
            ("why", claim.why),
        ):
            out.line(f"    {name:<9} {text}")
