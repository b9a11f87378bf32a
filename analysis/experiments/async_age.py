"""Actors elsewhere: the age of batches, by the number of actors, what acting costs, and how many batches may wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from analysis import plots, style
from analysis.load import final
from analysis.tables import having

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BY = ["choice.task", "actor.queue", "actor.count", "actor.pace"]
USUAL = {"actor.count": 1, "actor.pace": 1.0, "actor.queue": 2}
OLDEST = 12
"""Ages from here on are counted together in the figure."""


def select(frame: pd.DataFrame) -> pd.DataFrame:
    """A row per setting and age: the share of batches of that age, in learner steps, over all seeds and the second half
    of the steps; with the mean age, in steps and in seconds, what acting costs over learning, and how far the shares
    are from a uniform distribution on 0..D of the same mean: half the sum of their absolute differences."""
    frame = having(frame, list(USUAL)).fillna(USUAL)
    rows = []
    for key, group in frame.groupby(BY):
        ages, seconds = ages_of(group)
        ends = final(group)
        learning = ends[["seconds_screen", "seconds_backward", "seconds_optimizer"]].sum(axis=1)
        shares = np.bincount(ages) / len(ages)
        about = dict(zip(BY, key, strict=True)) | {
            "ratio": float((ends["actor_busy"] / learning).mean()),
            "mean_age": float(ages.mean()),
            "age_s": float(seconds.mean()),
            "uniform": from_uniform(shares),
            "forward": float(ends["forward"].mean()),
            "step": int(ends["step"].max()),
            "seeds": ends["seed"].nunique(),
            "diverged": int(ends["error"].isna().sum()),
        }
        rows += [about | {"age": age, "share": share} for age, share in enumerate(shares)]
    return pd.DataFrame(rows)


def ages_of(group: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """How many learner steps, and how many seconds, old each batch's parameters were, over all runs; without the first
    half, in which the learner often stands still to be evaluated while the queue fills."""
    steps, seconds = [], []
    for _, run in group.sort_values("step").groupby(["cell", "seed"]):
        versions = [version for each in run["schedule"] for _, version in each]
        later = len(versions) // 2
        steps += [step - version for step, version in enumerate(versions)][later:]
        seconds += [age for each in run["age_s"] for age in each][later:]
    return np.array(steps), np.array(seconds)


def from_uniform(shares: np.ndarray) -> float:
    """Total variation between shares of ages and the uniform distribution on 0..D with the same mean, D = 2·mean, its
    last age weighted so that the means agree. 0: the same; 1: nothing in common."""
    span = 2 * float((shares * np.arange(len(shares))).sum())
    whole = int(span)
    theirs = np.zeros(max(len(shares), whole + 2))
    theirs[: whole + 1] = 1 / (whole + 1)
    upper = np.zeros_like(theirs)
    upper[: whole + 2] = 1 / (whole + 2)
    mixed = (1 - (span - whole)) * theirs + (span - whole) * upper
    ours = np.pad(shares, (0, len(theirs) - len(shares)))
    return float(np.abs(ours - mixed).sum() / 2)


def measured(table: pd.DataFrame) -> str:
    """The mean age of each setting, and how far ages are from uniform, in words."""
    return "mean age in learner steps, and distance from uniform on 0..D: " + "; ".join(
        f"{row['choice.task']}, queue {row['actor.queue']:g}, {row['actor.count']:g} elsewhere at pace "
        f"{row['actor.pace']:g} (acting {row['ratio']:.2g} times learning): {row['mean_age']:.1f} steps = "
        f"{row['age_s'] * 1e3:.0f} ms, {row['uniform']:.2f}"
        for row in table.drop_duplicates(BY).to_dict("records")
    )


def plot(table: pd.DataFrame) -> Figure:
    tasks, queues = list(dict.fromkeys(table["choice.task"])), sorted(set(table["actor.queue"]))
    figure, grid = plots.panels(len(tasks), len(queues), squeeze=False, sharey=True)
    for line, task in zip(grid, tasks, strict=True):
        for axes, queue in zip(line, queues, strict=True):
            own = table[(table["choice.task"] == task) & (table["actor.queue"] == queue)]
            for (count, pace), group in own.groupby(["actor.count", "actor.pace"]):
                shares = group.set_index(group["age"].clip(upper=OLDEST)).groupby(level=0)["share"].sum()
                colour = {1: "#56b4e9", 2: "#0072b2", 4: "#332288"}.get(int(count), "#000000")
                name = f"{count:g} actor{'s' * (count > 1)}, {pace:g}×: mean {group['mean_age'].iloc[0]:.1f}"
                axes.plot(shares.index, shares, marker=".", color=colour, ls="-" if pace == 1 else "--", label=name)
            axes.set(title=f"{task}, a queue of {queue:g}", xlabel=f"age in learner steps ({OLDEST}: or more)")
            axes.legend(fontsize=6.5)
        line[0].set_ylabel("share of batches")
    style.note(figure, table, "pace: how many times as long as it computes an actor takes", "")
    return figure
