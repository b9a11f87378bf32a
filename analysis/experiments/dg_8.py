"""DG, Fig. 8: token reversal with the share reward, H = 10, M = 2, 1,000 steps, beside the published points."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from analysis import plots, published, style
from analysis.judge import DG_1, Finding, above, by_setting, claim, found, reaches, scope, share, times, unready
from analysis.settings import DG, PG, REVERSAL, method
from analysis.stats import factor
from analysis.tables import SETTING, aggregate, having

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BY = [*SETTING, "method.alpha"]
ALPHA = 0.6
"""PMPO's, in the paper's appendix."""


def select(frame: pd.DataFrame) -> pd.DataFrame:
    return aggregate(having(frame[frame["step"] > 0], BY), [*BY, "step"])


def plot(table: pd.DataFrame) -> Figure:
    figure, axes = plots.panels(1, 1)
    plots.lines(axes, table, "step", by=BY, se=True)
    theirs = _theirs()
    plots.overlay(axes, theirs, "steps")
    plots.floor(axes, pd.concat([table["error"], theirs["value"]]))
    axes.set(xlabel="steps", ylabel="share of wrong tokens", title="Reversal, share reward; hollow: the paper's")
    axes.legend(fontsize=8)
    style.note(figure, table, "PMPO: α = 0.5 (solid), 0.6", "bands: one standard error (dark), 95% intervals (light)")
    return figure


def beside(frame: pd.DataFrame) -> pd.DataFrame:
    """PMPO with the α of the paper's appendix."""
    own = select(frame)
    own = own[own["method.alpha"].isna() | (own["method.alpha"] == ALPHA)]
    ours = own.rename(columns={"error": "ours", "step": "steps"})
    return published.compared(_theirs().merge(ours, on=["steps", *SETTING], how="left"), "steps")


def _theirs() -> pd.DataFrame:
    return published.published(published.DG_PAPER, "Fig. 8", "token_error").astype({"steps": int})


@claim(
    "G1-share",
    "Reversal, share reward, H = 10, M = 2, 1,000 steps: DG's error is 100 times below PG's, and PG's below PMPO's",
    "DG 0.034%, PG 3.4%, PMPO 9%",
    "dg_8",
    version=DG_1,
    where=REVERSAL | {"task.length": 10, "task.vocab": 2, "task.credit": "share", "steps": 1000},
)
def dg_leads_on_shares(frame: pd.DataFrame) -> Finding:
    """Factors between mean errors of all seeds; PMPO with α = 0.6, as the paper's appendix has it."""
    settings = {"dg": DG, "pg": PG, "pmpo": {**method("pmpo"), "method.alpha": ALPHA}}
    errors = by_setting(frame, "error", settings)
    if few := unready(errors, settings):
        return few
    lead, order = factor(errors["pg"], errors["dg"]), factor(errors["pmpo"], errors["pg"])
    return found(
        [
            (f"PG's error about 100 times DG's: {times(lead)}", reaches(lead, 100)),
            (f"PMPO's error above PG's: {times(order)}", above(order, 1)),
        ],
        ", ".join(f"{style.name(key)} {share(errors[key].mean())}" for key in settings),
        lead,
        **scope(frame, errors),
    )


WHY = {
    "G1-share": (
        "Two of PG's ten seeds get stuck, and its mean is made by them; the figure's, half of ours, has probably fewer "
        "such seeds. PMPO is far below the figure's, as in Joy, Fig. 8 (J9-pmpo): where it leaves answers of no "
        "advantage alone it ends beside the published point."
    ),
}
