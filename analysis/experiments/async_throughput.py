"""Samples per second in one process and with actors elsewhere, by what acting costs, with and without a gate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from analysis import plots, style
from analysis.load import final
from analysis.tables import SETTING, having, seconds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COMPARED = ["choice.task", "actor.pace", *SETTING]
"""What is compared with actors elsewhere and without."""
BY = [*COMPARED, "actors", "twin"]
USUAL = {"actor.pace": 1.0, "choice.twin": 0}
LEARNING = ["seconds_screen", "seconds_backward", "seconds_optimizer"]


def select(frame: pd.DataFrame) -> pd.DataFrame:
    """A row per setting: samples of all seeds per second of the learner, evaluations left out, what acting costs over
    learning, and how long the learner waited. No actors: all in one process. A twin has batches of the same ages in one
    process: like a learner with actors elsewhere it cannot go on from the sampler's forward pass."""
    frame = having(frame, ["actor.mode", "actor.count", "learner_idle", "actor_busy", *USUAL]).fillna(USUAL)
    elsewhere = frame["actor.mode"] == "async"
    counts = frame["actor.count"].fillna(1).where(elsewhere, 0).astype(int)
    frame = frame.assign(actors=counts, twin=frame["choice.twin"].astype(int))
    rows = []
    for key, group in final(frame).groupby([*BY, "cell"], dropna=False):
        row: dict[str, Any] = dict(zip(BY, key, strict=False))
        clock = float(seconds(group).sum())  # of an asynchronous run the time that it waited for a batch is its rollout
        acting = group["actor_busy"].mean() if row["actors"] else group["seconds_rollout"].sum()
        rows.append(
            row
            | {"per_second": float(group["forward"].sum()) / clock}
            | {"ratio": float(acting / group[LEARNING].sum(axis=1).sum())}
            | {"idle": float(group["learner_idle"].mean()) / clock if row["actors"] else 0.0}
            | {"forward": float(group["forward"].mean()), "step": int(group["step"].max())}
            | {"seeds": group["seed"].nunique(), "diverged": int(group["error"].isna().sum())}
        )
    table = pd.DataFrame(rows)
    # the twins of one, two and four actors differ only in the ages of their batches
    means = table.groupby(BY, dropna=False, as_index=False).mean(numeric_only=True)
    return means.astype({"step": int, "seeds": int, "diverged": int})


def measured(table: pd.DataFrame) -> str:
    """Samples per second in one process, and how many times as many with actors elsewhere, in words."""
    said = []
    for key, group in table.groupby(COMPARED, dropna=False):
        row = dict(zip(COMPARED, key, strict=True))
        here, twin = (group[(group["actors"] == 0) & (group["twin"] == kind)] for kind in (0, 1))
        if not len(here):
            continue
        first = here.iloc[0]
        parts = [
            f"{row['choice.task']}, {style.label(row)}, pace {row['actor.pace']:g}: {first['per_second']:,.0f} in one "
            f"process (acting {first['ratio']:.2g} times learning)"
        ]
        for each in group[group["actors"] > 0].to_dict("records"):
            fair = f", {each['per_second'] / twin.iloc[0]['per_second']:.2f} of its twin's" if len(twin) else ""
            parts.append(
                f"{each['per_second'] / first['per_second']:.2f} times with {each['actors']} elsewhere{fair} (acting "
                f"{each['ratio']:.2g} times learning, the learner idle {each['idle']:.0%})"
            )
        said.append(", ".join(parts))
    return f"samples per second: {'; '.join(said)}"


def plot(table: pd.DataFrame) -> Figure:
    tasks, paces = list(dict.fromkeys(table["choice.task"])), sorted(set(table["actor.pace"]))
    figure, grid = plots.panels(len(tasks), len(paces), squeeze=False)
    for line, task in zip(grid, tasks, strict=True):
        for axes, pace in zip(line, paces, strict=True):
            own = table[(table["choice.task"] == task) & (table["actor.pace"] == pace)]
            for place, (key, group) in enumerate(own.groupby(SETTING, dropna=False)):
                row = dict(zip(SETTING, key, strict=True))
                colour = style.colour(row["method.name"])
                real, twin = group[group["twin"] == 0].sort_values("actors"), group[group["twin"] == 1]
                look = {"color": colour, "ls": plots.DASHES[place % len(plots.DASHES)], "marker": "o"}
                axes.plot(real["actors"], real["per_second"], label=style.label(row), **look)
                axes.plot(twin["actors"], twin["per_second"], "o", mfc="none", color=colour)
            counts = sorted(own["actors"].unique())
            axes.set_xticks(counts, ["one process" if count == 0 else f"{count}" for count in counts])
            slow = "" if pace == 1 else f", acting slowed {pace:g} times"
            axes.set(title=f"{task}{slow}", xlabel="actors elsewhere", ylabel="samples per second", ylim=(0, None))
            axes.legend(fontsize=7)
    style.note(figure, table, "hollow: one process, batches as old as the actors'", bands="")
    return figure
