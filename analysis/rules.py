"""How a claim is judged, as tables of rule and reason with the numbers that the code has."""

from __future__ import annotations

from analysis import judge, settings, stats

VERDICTS = {
    judge.REPRODUCED: "all parts hold",
    judge.PARTLY: "some do",
    judge.NOT: "none does, and none is open",
    judge.INCONCLUSIVE: "none holds, and some are open: too few seeds, or intervals that allow either",
    judge.NOT_RUN: "no finished runs of what it is about: said, so that silence is not taken for a result",
}
RULES = (
    (
        "interval",
        f"95%, percentile bootstrap over seeds, {stats.RESAMPLES:,} resamples, the same ones every time",
        "seeds are the only independent draws; the same logs give the same verdict",
        "`analysis/stats.py` `bootstrap`",
    ),
    (
        "few seeds",
        "both tails stretched by t/z · √(n/(n−1))",
        "the plain percentile interval of n values is too narrow",
        "`analysis/stats.py` `resampled`",
    ),
    (
        "comparison",
        "paired by seed",
        "two methods meet the same data and the same start",
        "`analysis/stats.py` `paired`",
    ),
    (
        "least evidence",
        f"{judge.MIN_SEEDS} seeds in common",
        "of fewer no spread can be told",
        "`analysis/judge.py` `unready`",
    ),
    (
        "equal errors",
        f"they differ by less than {100 * judge.MARGIN:g} points, interval included",
        "“matches” needs a margin",
        "`analysis/judge.py` `MARGIN`",
    ),
    (
        "a factor of the paper's",
        f"reached from {judge.NEAR:.0%} of it on, with an interval above 1",
        "“about 6 times” is no lower bound",
        "`analysis/judge.py` `NEAR`",
    ),
    (
        "a seed that diverged",
        "has an error of 100%",
        "who is left out of a mean improves it",
        "`analysis/judge.py` `by_setting`",
    ),
    (
        "a seed that never got there",
        "of the other method: counts with all it spent; of the claim's own: the factor is 0",
        "each a bound against the claim",
        "`analysis/judge.py` `cheaper`",
    ),
    (
        "many alternatives",
        "intervals widened by Bonferroni's rule",
        "the best of many is lucky",
        "`analysis/experiments/mnist_priority.py` `select`",
    ),
    (
        "strength of frictions",
        f"intensity {settings.LEVEL:g}",
        "the papers' is not known",
        "`analysis/settings.py` `LEVEL`",
    ),
)
"""What, rule, reason, and where it stands."""


def tables() -> str:
    """Both, as Markdown."""
    lines = ["| verdict | when |", "|---|---|", *(f"| {word} | {when} |" for word, when in VERDICTS.items()), ""]
    lines += ["| what | rule | reason | where |", "|---|---|---|---|"]
    return "\n".join(lines + [f"| {' | '.join(row)} |" for row in RULES])
