"""Samples per second in one process and with actors elsewhere, with and without a gate."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from analysis import plots, style
from analysis.load import final
from analysis.tables import SETTING, having, seconds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BY = ["choice.task", *SETTING, "actors"]


def select(frame: pd.DataFrame) -> pd.DataFrame:
    """A row per setting: samples of all seeds per second of the learner, evaluations left out, what acting costs over
    learning, and how long the learner waited. No actors: all in one process."""
    frame = having(frame, ["actor.mode", "actor.count", "learner_idle", "actor_busy"])
    elsewhere = frame["actor.mode"] == "async"
    frame = frame.assign(actors=frame["actor.count"].fillna(1).where(elsewhere, 0).astype(int))
    rows = []
    for key, group in final(frame).groupby(BY, dropna=False):
        count = group["seed"].nunique()
        clock = float(seconds(group).sum())  # of an asynchronous run the time that it waited for a batch is its rollout
        learning = group[["seconds_screen", "seconds_backward", "seconds_optimizer"]].sum(axis=1).sum()
        acting = group["actor_busy"].mean() if key[-1] else group["seconds_rollout"].sum()
        rows.append(
            dict(zip(BY, key, strict=True))
            | {"per_second": float(group["forward"].sum()) / clock, "ratio": float(acting / learning)}
            | {"idle": float(group["learner_idle"].mean()) / clock if key[-1] else 0.0}
            | {"forward": float(group["forward"].mean()), "step": int(group["step"].max()), "seeds": count}
            | {"diverged": int(group["error"].isna().sum())}
        )
    return pd.DataFrame(rows)


def measured(table: pd.DataFrame) -> str:
    """Samples per second in one process, and how many times as many with actors elsewhere, in words."""
    said = []
    for key, group in table.groupby(["choice.task", *SETTING], dropna=False):
        inline = group.loc[group["actors"] == 0, "per_second"]
        row = dict(zip(["choice.task", *SETTING], key, strict=True))
        if not len(inline):
            continue
        parts = [
            f"{each['per_second'] / inline.iloc[0]:.2f} times with {each['actors']} actors (acting "
            f"{each['ratio']:.2g} times learning, the learner idle {each['idle']:.0%})"
            for each in group[group["actors"] > 0].to_dict("records")
        ]
        here = f"{row['choice.task']}, {style.label(row)}: {inline.iloc[0]:,.0f} in one process"
        said.append(", ".join([here, *parts]))
    return f"samples per second: {'; '.join(said)}"


def plot(table: pd.DataFrame) -> Figure:
    tasks = list(dict.fromkeys(table["choice.task"]))
    figure, grid = plots.panels(1, len(tasks), squeeze=False)
    for axes, task in zip(grid[0], tasks, strict=True):
        own = table[table["choice.task"] == task]
        for place, (key, group) in enumerate(own.groupby(SETTING, dropna=False)):
            row = dict(zip(SETTING, key, strict=True))
            group = group.sort_values("actors")
            dash = plots.DASHES[place % len(plots.DASHES)]
            look = {"color": style.colour(row["method.name"]), "ls": dash, "marker": "o"}
            axes.plot(group["actors"], group["per_second"], label=style.label(row), **look)
        counts = sorted(own["actors"].unique())
        axes.set_xticks(counts, ["one process" if count == 0 else f"{count}" for count in counts])
        axes.set(title=task, xlabel="actors elsewhere", ylabel="samples per second", ylim=(0, None))
        axes.legend(fontsize=7)
    style.note(figure, table, bands="")
    return figure
