"""DG, Fig. 3: MNIST by baseline and by guesses per image, beside the published points; DG-K is ours."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from analysis import plots, published, style
from analysis.judge import DG_1, Finding, Part, above, by_setting, claim, found, lower, scope, share, times, unready
from analysis.load import final
from analysis.settings import DG, MNIST, PG, Columns
from analysis.stats import factor
from analysis.tables import SETTING, aggregate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMES = {"confidence": "Σπ²", "half": "½", "zero": "0", "oracle": "π(y*)"}
GUESSES = (1, 3, 10, 100)


def select(frame: pd.DataFrame) -> pd.DataFrame:
    by = ["task.baseline", "task.samples", *SETTING]
    return aggregate(final(frame), by, ("error", "train_error"))


def plot(table: pd.DataFrame) -> Figure:
    figure, row = plots.panels(1, 4, sharey=True)
    theirs = _theirs()
    for axes, (baseline, name) in zip(row, NAMES.items(), strict=True):
        plots.lines(axes, table[table["task.baseline"] == baseline], "task.samples", "train_error")
        plots.overlay(axes, theirs[theirs["b"] == baseline], "S")
        axes.set(xscale="log", xlabel="guesses per image S", title=f"b = {name}")
        axes.set_xticks(GUESSES, [str(each) for each in GUESSES])
    plots.floor(row[0], pd.concat([table["train_error"], theirs["value"]]))
    row[0].set_ylabel("final error of sampled guesses")
    row[0].legend(fontsize=8)
    style.note(figure, table, "hollow: the paper's, at 10,000 steps")
    return figure


def beside(frame: pd.DataFrame) -> pd.DataFrame:
    ours = select(frame).rename(columns={"task.baseline": "b", "task.samples": "S", "train_error": "ours"})
    both = _theirs().merge(ours, on=["b", "S", *SETTING], how="left")
    where = [f"b = {NAMES[b]}, S = {guesses:g}" for b, guesses in zip(both["b"], both["S"], strict=True)]
    return published.compared(both.assign(**{"baseline and guesses": where}), "baseline and guesses")


def _theirs() -> pd.DataFrame:
    return published.published(published.DG_PAPER, "Fig. 3", "error").astype({"S": float})


@claim(
    "G1-baseline",
    "MNIST: DG ends below PG with every baseline, and its lead over PG shrinks with more guesses per image",
    "PG over DG at S = 1: 2.1 (b = 0), 1.4 (½), 1.9 (Σπ²), 2.7 (oracle); at S = 100, Σπ²: 1.3",
    "dg_3",
    version=DG_1,
    where=MNIST,
)
def dg_leads_with_every_baseline(frame: pd.DataFrame) -> Finding:
    """Errors of sampled guesses at the end. Below: PG's over DG's above one, at 95%, at S = 1 for each baseline, and at
    every S for Σπ². Shrinks: the factor at S = 100 is below that at S = 1, their intervals not overlapping."""
    places = [(baseline, 1) for baseline in NAMES] + [("confidence", guesses) for guesses in GUESSES[1:]]
    settings: dict[str, Columns] = {
        f"{key} {baseline} {guesses}": {**method, "task.baseline": baseline, "task.samples": guesses}
        for key, method in (("pg", PG), ("dg", DG))
        for baseline, guesses in places
    }
    errors = by_setting(frame, "train_error", settings)
    if few := unready(errors, settings):
        return few
    leads = {
        place: factor(errors[f"pg {place[0]} {place[1]}"], errors[f"dg {place[0]} {place[1]}"]) for place in places
    }
    parts: list[Part] = [
        (f"b = {NAMES[baseline]}, S = {guesses}: PG's error over DG's: {times(lead)}", above(lead, 1))
        for (baseline, guesses), lead in leads.items()
    ]
    few_guesses, many = leads["confidence", 1], leads["confidence", 100]
    parts.append(
        (
            f"the lead at S = 100 is below that at S = 1: {times(many)} against {times(few_guesses)}",
            lower(many, few_guesses),
        )
    )
    return found(
        parts,
        "; ".join(
            f"b = {NAMES[baseline]}, S = {guesses}: PG {share(errors[f'pg {baseline} {guesses}'].mean())}, "
            f"DG {share(errors[f'dg {baseline} {guesses}'].mean())}"
            for baseline, guesses in places
        ),
        few_guesses,
        **scope(frame, errors),
    )


WHY = {
    "G1-baseline": (
        "With b = 0 some seeds of either method do not learn one of the digits within 10,000 steps, which costs "
        "each of them ten points: the means of ten seeds are made by how many these are."
    ),
}
