"""What the gate keeps, at four moments of training on MNIST: the plane of advantage and surprisal, and the digits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from analysis import plots, style
from analysis.tables import check_unique

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOMENTS = 4


def select(frame: pd.DataFrame) -> pd.DataFrame:
    """A row per sample: four moments evenly spaced on a log axis, of every seed."""
    check_unique(frame, ["step"])
    steps = np.sort(frame["step"].unique())
    wanted = np.geomspace(max(1, steps[-1] ** 0.25), steps[-1], MOMENTS)
    moments = sorted({int(steps[np.abs(np.log(steps + 1e-9) - np.log(want)).argmin()]) for want in wanted})
    rows = []
    for row in frame[frame["step"].isin(moments)].to_dict("records"):
        samples = zip(
            row["anatomy_advantage"], row["anatomy_surprisal"], row["anatomy_keep"], row["anatomy_digit"], strict=True
        )
        common = {"step": row["step"], "seed": row["seed"], "price": row["anatomy_price"], "forward": row["forward"]}
        rows += [
            common | dict(zip(("advantage", "surprisal", "keep", "digit"), sample, strict=True)) for sample in samples
        ]
    return pd.DataFrame(rows).assign(seeds=frame["seed"].nunique(), diverged=0)


def measured(table: pd.DataFrame) -> str:
    """What is kept and what is not, at each moment, in words."""
    words = []
    for step, samples in table.groupby("step"):
        kept = samples[samples["keep"] == 1]
        words.append(
            f"at step {step:,}, {(kept['advantage'] > 0).mean():.0%} of the kept samples had earned more than expected "
            f"and {(samples['advantage'] > 0).mean():.0%} of all; mean surprisal {kept['surprisal'].mean():.2g} and "
            f"{samples['surprisal'].mean():.2g}"
        )
    return "; ".join(words)


def plot(table: pd.DataFrame) -> Figure:
    moments = sorted(table["step"].unique())
    figure, grid = plots.panels(2, MOMENTS, sharey="row")
    figure.set_size_inches(11, 5.6)
    first = table["seed"].min()
    for (top, bottom), step in zip(grid.T, moments, strict=False):
        samples = table[(table["step"] == step) & (table["seed"] == first)]
        for keep, colour, name in ((0, "#bbbbbb", "skipped"), (1, style.colour("dgk"), "kept")):
            chosen = samples[samples["keep"] == keep]
            top.scatter(chosen["advantage"], chosen["surprisal"], s=7, color=colour, label=name, lw=0)
        price = samples["price"].iloc[0]
        if price > 0:
            gain = np.linspace(price / max(samples["surprisal"].max(), 1e-3), 1, 200)
            top.plot(gain, price / gain, color="black", lw=0.8, ls=":", label="χ = λ")
        top.set(xlim=(-1.05, 1.05), xlabel="advantage U", title=f"step {step:,}: λ = {price:.2g}")
        top.set_yscale("symlog", linthresh=0.1)
        top.set_ylim(0, 1.3 * table.loc[table["seed"] == first, "surprisal"].max())
        everyone = table[table["step"] == step]
        share = everyone[everyone["keep"] == 1]["digit"].value_counts(normalize=True).reindex(range(10), fill_value=0)
        base = everyone["digit"].value_counts(normalize=True).reindex(range(10), fill_value=0)
        bottom.bar(share.index, share, color=style.colour("dgk"), label="of the kept")
        bottom.step(np.arange(-0.5, 10.5), [*base, base.iloc[-1]], where="post", color="black", lw=0.8, label="of all")
        bottom.set(xticks=range(10), xlabel="digit")
        bottom.grid(visible=False)
    grid[0, 0].set_ylabel("surprisal ℓ")
    grid[1, 0].set_ylabel("share of samples")
    grid[0, 0].legend(fontsize=7)
    grid[1, 0].legend(fontsize=7)
    style.note(figure, table, "above: one seed; below: all seeds", bands="")
    return figure
