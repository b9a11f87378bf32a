"""Token reversal: the longest prompt that is solved, within a budget of forward or backward passes, and by vocabulary.

Lengths are tried from the shortest on, as long as some seed solves them; solved means an error of at most `solved`.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from analysis import plots, style
from analysis.judge import DIST, JOY, Finding, Part, above, claim, found, scope, span, unready
from analysis.load import final
from analysis.settings import ALL, LEVEL, REVERSAL, Settings, answers, under
from analysis.stats import Interval, bootstrap, paired
from analysis.tables import SETTING, chosen, cost_to_reach, matching

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BUDGETS = 25
BY = ["friction", "task.vocab", *SETTING]


def select(frame: pd.DataFrame) -> pd.DataFrame:
    """By friction, vocabulary, setting and budget: the mean over seeds of the longest length solved. Curves over
    budgets are for the smallest vocabulary, and end where the budget of a run ends."""
    frame = chosen(frame)
    smallest = frame["task.vocab"].min()
    rows: list[dict[str, Any]] = []
    for key, group in frame.groupby(BY, dropna=False):
        common = dict(zip(BY, key, strict=True)) | {
            "tried": group["task.length"].max(),
            "step": int(group["step"].max()),
            "forward": group["forward"].max(),
            "seeds": len(longest(group)),
            "solved": group["solved"].iloc[0],
            "diverged": group.loc[group["diverged"].notna(), ["cell", "seed"]].drop_duplicates().shape[0],
        }
        costs = _costs(group)
        for cost in ("forward", "backward"):
            spent = group[cost].max()
            least = frame.loc[frame["step"] > 0, cost].min()
            grid = np.geomspace(least, spent, BUDGETS) if common["task.vocab"] == smallest else [spent]
            for budget in grid:
                interval = bootstrap(_longest(costs, cost, budget))
                values = {"longest": interval.mean, "longest_low": interval.low, "longest_high": interval.high}
                rows.append(common | {"cost": cost, "budget": budget} | values)
    return pd.DataFrame(rows)


def longest(frame: pd.DataFrame, cost: str = "forward", budget: float = np.inf) -> pd.Series:
    """By seed, the longest length that was solved within the budget, as all shorter ones were; 0 where none was. Seeds
    that only another figure trained, at some of the lengths, are left out."""
    return _longest(_costs(frame), cost, budget)


def _costs(frame: pd.DataFrame) -> pd.DataFrame:
    """By length and seed: whether the length was solved, and what that took."""
    return cost_to_reach(frame, frame["solved"].iloc[0], ["task.length"])


def _longest(costs: pd.DataFrame, cost: str, budget: float) -> pd.Series:
    solved = costs.assign(solved=costs["reached"] & (costs[cost] <= budget * (1 + 1e-9)))
    table = solved.pivot(index="seed", columns="task.length", values="solved").sort_index(axis=1)
    unbroken = table.dropna().astype(float).cumprod(axis=1)
    return (unbroken * table.columns.to_numpy(dtype=float)).max(axis=1)


def plot(table: pd.DataFrame) -> Figure:
    figure, grid = plots.panels(2, 3, sharey="row")
    level = style.percent(table["solved"].iloc[0])
    smallest = table["task.vocab"].min()
    for row, (name, words) in zip(grid, (("none", "clean"), ("all", "all frictions")), strict=True):
        chosen = table[table["friction"] == name]
        for axes, cost in zip(row, ("forward", "backward"), strict=False):
            small = chosen[(chosen["cost"] == cost) & (chosen["task.vocab"] == smallest)]
            plots.lines(axes, small, "budget", "longest")
            axes.set(xscale="log", title=f"{words}, M = {smallest}", xlabel=f"budget of {cost} passes per seed")
        ends = chosen[chosen["cost"] == "forward"].sort_values("budget").groupby(BY, dropna=False).tail(1)
        plots.lines(row[2], ends, "task.vocab", "longest")
        row[2].set_xscale("log", base=2)
        vocabularies = sorted(table["task.vocab"].unique())
        row[2].set_xticks(vocabularies, [f"{vocab:g}" for vocab in vocabularies])
        row[2].set(title=f"{words}, whole budget", xlabel="vocabulary M")
        row[0].set_ylabel(f"longest H with error ≤ {level}")
        row[0].set_ylim(bottom=0)
    grid[0, 0].legend(fontsize=8)
    style.note(figure, table)
    return figure


AGREEING = 6
"""So many seeds all agree by chance in less than 5% of cases: 2 · ½ⁿ."""


@claim(
    "J10",
    "Reversal, M = 2: the longest H solved within a budget is DG-K ≥ DG ≫ PMPO > PPO > PG, by forward and by backward "
    "passes",
    "shown in Fig. 10",
    "reversal_scaling",
    version=JOY,
    where=REVERSAL | {"task.vocab": 2},
)
def gate_goes_farthest(frame: pd.DataFrame) -> Finding:
    """By forward passes each relation of the order is a part of the claim; by backward passes, compared at what DG-K
    spent in all, that DG-K is above DG or equal, and above each of the others."""
    clean = under(frame, "none", 0.0)
    settings = {"dgk": answers(0.03), **ALL}
    lengths = _lengths(clean, settings)
    if few := unready(lengths, settings):
        return few
    budget = float(final(matching(clean, settings["dgk"]))["backward"].max())
    within = _lengths(clean, settings, "backward", budget)
    grid = _grid(clean)
    gap, spared = _gap(lengths, "dgk", "dg", grid), _gap(within, "dgk", "dg", grid)
    parts = [
        (f"DG-K at least DG, by forward passes: {span(gap, '+.1f')}", _at_least(gap)),
        *_descending(lengths, grid, ("dg", "pmpo", "ppo", "pg"), suffix=", by forward passes"),
        (f"DG-K at least DG, by backward passes: {span(spared, '+.1f')}", _at_least(spared)),
        *_descending(within, grid, ("dgk", "pmpo"), ("dgk", "ppo"), ("dgk", "pg"), suffix=", by backward passes"),
    ]
    return found(
        parts,
        f"{_solved(clean)}: {_means(lengths)}; within {budget:,.0f} backward passes: {_means(within)} "
        f"(lengths tried: {_tried(clean)})",
        gap,
        **scope(clean, lengths),
    )


@claim(
    "D6",
    "Reversal with all four frictions, M = 2: DG solves longer prompts than PMPO, PMPO than PPO, PPO than PG",
    "after 10,000 steps PG about 3.5, PPO about 5, PMPO about 8, DG about 13",
    "reversal_scaling",
    version=DIST,
    where=REVERSAL,
)
def dg_goes_farthest_under_frictions(frame: pd.DataFrame) -> Finding:
    """All at intensity 0.25. Each relation of the order is a part of the claim."""
    every = under(frame, "all", LEVEL)
    rough = every[every["task.vocab"] == 2]
    lengths = _lengths(rough, ALL)
    if few := unready(lengths, ALL):
        return few
    grid = _grid(rough)
    return found(
        _descending(lengths, grid, ("dg", "pmpo", "ppo", "pg")),
        f"{_solved(rough)}: {_means(lengths)} (lengths tried: {_tried(rough)})"
        + "".join(
            f"; M = {vocab:g}: {_means(_lengths(group, ALL))}"
            for vocab, group in every.groupby("task.vocab")
            if vocab != 2
        ),
        _gap(lengths, "dg", "pmpo", grid),
        **scope(rough, lengths),
    )


def _lengths(frame: pd.DataFrame, settings: Settings, cost: str = "forward", budget: float = np.inf) -> pd.DataFrame:
    """[seed × setting]; without those whose search is not finished: whose longest length was solved, and a longer one
    is to be tried."""
    columns = {}
    for key, setting in settings.items():
        group = matching(frame, setting)
        top = group[group["task.length"] == group["task.length"].max()]
        solved = (top["error"] <= top["solved"]).any()
        if len(group) and not (solved and top["task.length"].iloc[0] < group["last"].iloc[0]):
            columns[key] = longest(group, cost, budget)
    return pd.DataFrame(columns)


def _solved(frame: pd.DataFrame) -> str:
    return f"longest H with error ≤ {frame['solved'].iloc[0]:.0%}"


def _descending(lengths: pd.DataFrame, grid: list[float], *orders: tuple[str, ...], suffix: str = "") -> list[Part]:
    """Whether each is above the next, at 95%."""
    pairs = [pair for order in orders for pair in itertools.pairwise(order)]
    gaps = {(high, low): _gap(lengths, high, low, grid) for high, low in pairs}
    return [
        (f"{style.name(high)} above {style.name(low)}{suffix}: {span(gap, '+.1f')}", above(gap, 0))
        for (high, low), gap in gaps.items()
    ]


def _grid(frame: pd.DataFrame) -> list[float]:
    return sorted(map(float, frame["task.length"].unique()))


def _gap(lengths: pd.DataFrame, high: str, low: str, grid: list[float]) -> Interval:
    """How much longer the lengths of one are. Where a few seeds all agree their interval is a point, which says more
    than they can know (fewer than six agree by chance in more than 5% of cases): then it has room for what each would
    solve short of the next length that was tried."""
    gap = paired(lengths[high], lengths[low])
    if gap.low < gap.high or lengths[[high, low]].dropna().shape[0] >= AGREEING:
        return gap

    def beyond(solved: pd.Series) -> pd.Series:
        last = 2 * grid[-1] - grid[-2] if len(grid) > 1 else np.inf
        return solved.map(lambda length: next((each for each in grid if each > length), last))

    least, most = paired(lengths[high], beyond(lengths[low])), paired(beyond(lengths[high]), lengths[low])
    return Interval(gap.mean, least.low, most.high)


def _at_least(gap: Interval) -> bool | None:
    """Whether a difference is not below zero, where its interval tells."""
    return True if gap.low >= 0 else False if gap.high < 0 else None


def _means(lengths: pd.DataFrame) -> str:
    return ", ".join(f"{style.name(str(key))} {mean:.3g}" for key, mean in lengths.mean().items())


def _tried(frame: pd.DataFrame) -> str:
    return ", ".join(f"{length:g}" for length in sorted(frame["task.length"].unique()))
