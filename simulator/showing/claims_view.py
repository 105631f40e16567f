"""What people see of ``simulate claims``: a block of lines for each claim."""

from collections import Counter
from collections.abc import Sequence

from simulator.claims import Claim
from simulator.showing.terminal import console


def print_claims(claims: Sequence[Claim]) -> None:
    """How many claims hold, then each: claimed, computed, formula, verdict and why."""
    out = console()
    counts = Counter(claim.verdict for claim in claims)
    out.print(f"{len(claims)} claims: {', '.join(f'{count} {name}' for name, count in counts.most_common())}.")
    article = ""
    for claim in claims:
        if claim.article != article:
            article = claim.article
            out.print(f"\n{article}", style="bold")
        out.print(f"\n{claim.number}  {claim.verdict.upper()}: {claim.claim}", soft_wrap=True)
        for name, text in (
            ("claimed", claim.claimed),
            ("computed", "; ".join(map(str, claim.computed))),
            ("formula", claim.formula),
            ("why", claim.why),
        ):
            out.print(f"    {name:<9} {text}", soft_wrap=True)
