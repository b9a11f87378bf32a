"""The weights of surprising failures and successes when some samples are random, as the policy grows sure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pandas as pd

from analysis import plots, style
from analysis.judge import ABSTRACT, DIST_2, Finding, Part, above, claim, found, share, span, within
from analysis.settings import DG, FREE, PG, Settings, method
from analysis.studies import note, on_grid, replicates, slope, spread, studied, unfold
from analysis.tables import matching

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

EXACT = ["factor", "failure", "success"]
SIMULATED = [f"{name}_simulated" for name in EXACT]
RULE = ["method.name", "gate.priority", "gate.mode"]
BASELINES = {"confidence": "b = Σπ²", "half": "b = ½"}
DASHES = {"confidence": "-", "half": "--"}
SURPRISAL = {"hard": ("gate by surprisal", "#b8860b"), "soft": ("weight by surprisal", "#7b3294"),
             "bernoulli": ("coin by surprisal", "#117733")}  # fmt: skip


def select(frame: pd.DataFrame) -> pd.DataFrame:
    """A row per (method, gate, baseline, δ)."""
    rows = unfold(frame, ["delta", *EXACT, *SIMULATED])
    return spread(rows, [*RULE, "gate.price", "task.baseline", "task.share", "task.arms", "delta"], EXACT, SIMULATED)


def look(row: Mapping[Any, Any]) -> tuple[str, str]:
    """Name and colour of a rule."""
    if row["gate.priority"] == "surprisal":
        return SURPRISAL[row["gate.mode"]]
    words = {"dgk": "DG-K λ=0", "is_pg": "exact IS"}.get(row["method.name"], style.name(row["method.name"]))
    return words, style.colour(row["method.name"])


def curve(axes: Axes, group: pd.DataFrame, y: str, dash: str, label: str, colour: str, filled: bool = True) -> None:
    """A closed form and its simulation."""
    group = group.sort_values("delta")
    steps = "steps-mid" if group["gate.mode"].iloc[0] == "hard" else "default"
    axes.plot(group["delta"], group[y], color=colour, ls=dash, drawstyle=steps, label=label)
    mean, low, high = (group[f"{y}_simulated{end}"] for end in ("", "_low", "_high"))
    mark: dict[str, Any] = {"ms": 3.5, "mfc": colour} if filled else {"ms": 7, "mfc": "white"}  # a dot within a ring
    axes.errorbar(group["delta"], mean, [mean - low, high - mean], fmt="o", color=colour, capsize=2, **mark)


def plot(table: pd.DataFrame) -> Figure:
    figure, (moment, alike, apart) = plots.panels(1, 3)
    figure.set_size_inches(12.5, 4.2)
    delight = table[table["gate.priority"] != "surprisal"]
    for (_, baseline), group in delight.groupby(["method.name", "task.baseline"]):
        first = group.iloc[0].to_dict()
        (words, colour), dash, sign = look(first), DASHES[str(baseline)], BASELINES[str(baseline)]
        if first["method.name"] == "dgk" or (baseline != "confidence" and first["method.name"] != "dg"):
            continue  # the gate's factor is 0; PG and IS do not depend on b
        curve(moment, group, "factor", dash, f"{words}, {sign}" if first["method.name"] == "dg" else words, colour)
    moment.set(xscale="log", yscale="log", ylabel="second moment across ∇J, relative to PG")
    moment.set_title("Surprising failures (DG-K λ=0: none)")

    blind = table[(table["gate.priority"] == "surprisal") | (table["method.name"] == "is_pg")]
    for _, group in blind[blind["task.baseline"] == "confidence"].groupby(RULE, dropna=False):
        words, colour = look(group.iloc[0].to_dict())
        curve(alike, group, "success", "-", "", colour, filled=False)
        curve(alike, group, "failure", "-", words, colour)
    alike.set_title("By probability alone: one weight for both")
    for (name, baseline), group in delight[delight["method.name"].isin(["dg", "dgk"])].groupby(
        ["method.name", "task.baseline"]
    ):
        if name == "dgk" and baseline != "confidence":
            continue  # the same
        (words, colour), dash, sign = look(group.iloc[0].to_dict()), DASHES[str(baseline)], BASELINES[str(baseline)]
        words = f"{words}, {sign}" if name == "dg" else words
        curve(apart, group, "success", dash, "", colour, filled=False)
        curve(apart, group, "failure", dash, words, colour)
    apart.set_title("By delight: failures 0, successes not")
    for axes in (alike, apart):
        axes.plot([], [], "o", color="black", ms=3.5, label="rare failures")
        axes.plot([], [], "o", color="black", mfc="white", ms=7, label="rare successes")
        axes.set(xscale="log", ylim=(-0.04, 1.08), ylabel="mean weight")
    for axes in (moment, alike, apart):
        axes.set_xlabel("δ (the policy grows sure to the left)")
        axes.legend(fontsize=7.5)
    apart.legend(fontsize=7.5, loc="center left", bbox_to_anchor=(0, 0.3))
    random, arms = float(table["task.share"].iloc[0]), int(table["task.arms"].iloc[0])
    note(figure, table, f"{style.percent(random)} of the samples uniformly random, K = {arms}; rare: π(a) = δ/(K−1)")
    return figure


BY_PROBABILITY: Settings = {"exact IS": method("is_pg")} | {
    f"{words} by surprisal": method("dgk", **{"gate.priority": "surprisal", "gate.mode": mode})
    for words, mode in (("gate", "hard"), ("weight", "soft"), ("coin", "bernoulli"))
}
"""Weights that see nothing but the learner's probability of the action."""


def _suppressed(frame: pd.DataFrame, settings: Settings) -> dict[tuple[str, str], pd.DataFrame]:
    """The rows of each setting and baseline, a row per seed and δ."""
    columns = ["delta", *EXACT, *SIMULATED]
    return {
        (key, baseline): on_grid(matching(frame, {**setting, "task.baseline": baseline}), ["delta"], columns)
        for key, setting in settings.items()
        for baseline in BASELINES
    }


@claim(
    "D2′",
    "Bandit, some samples random: DG suppresses the second moment, across ∇J, of surprising failures by a factor that "
    "vanishes as the policy grows sure; PG and importance sampling do not",
    ABSTRACT,
    "suppression",
    version=DIST_2,
    where={"task.name": "suppression"},
)
def failures_are_suppressed(frame: pd.DataFrame) -> Finding:
    """Vanishes: the slope of the simulated factor in δ, on log axes over δ ≤ 0.01, is above ½ at 95%, and the factor in
    closed form is below 1% at the smallest δ. Does not: the slope is within 0.05 of 0."""
    settings: Settings = {"pg": PG, "is_pg": method("is_pg"), "dg": DG}
    if few := replicates(frame, [{**each, "task.baseline": b} for each in settings.values() for b in BASELINES]):
        return few
    rows = _suppressed(frame, settings)
    slopes = {key: slope(each[each["delta"] <= 0.01], "delta", "factor_simulated") for key, each in rows.items()}
    ends = {key: each.sort_values("delta").iloc[0] for key, each in rows.items()}
    parts: list[Part] = []
    for baseline, words in BASELINES.items():
        power, end = slopes["dg", baseline], float(ends["dg", baseline]["factor"])
        text = f"DG's factor vanishes, {words}: as δ to the power of {span(power, '.2f')}, to {end:.1g}"
        parts.append((text, above(power, 0.5) if end < 0.01 else False))
    for key in ("pg", "is_pg"):
        power = slopes[key, "confidence"]
        parts.append((f"{style.name(key)}'s does not: power {span(power, '.2f')}", within(power, 0, 0.05)))
    smallest = ends["pg", "confidence"]["delta"]
    return found(
        parts,
        f"at δ = {smallest:g}, relative to PG: "
        + "; ".join(f"DG, {words}, {ends['dg', b]['factor']:.2g}" for b, words in BASELINES.items())
        + f"; exact IS {ends['is_pg', 'confidence']['factor']:.2g}. PG's factor is 1 by definition. Exact importance "
        "weights π/β vanish with π, as β does not, on failures and successes alike; they are 1, as PG's, only if the "
        "reported probabilities know nothing of the random samples",
        slopes["dg", "confidence"],
        **studied(frame),
    )


@claim(
    "D3′",
    "Bandit, some samples random: a weight by the learner's probability alone that suppresses surprising failures "
    "suppresses surprising successes as much; delight does not",
    ABSTRACT,
    "suppression",
    version=DIST_2,
    where={"task.name": "suppression"},
)
def probability_is_not_enough(frame: pd.DataFrame) -> Finding:
    """Equal: the mean weights of rare failures and of rare successes differ by less than 1e-9 in closed form, and by
    less than five standard errors where simulated, in the mean over δ. Suppressed: below 1% at the smallest δ. Delight:
    there below 5% for failures, and half or more for successes."""
    settings: Settings = {**BY_PROBABILITY, "dg": DG, "dgk": FREE}
    if few := replicates(frame, [{**each, "task.baseline": b} for each in settings.values() for b in BASELINES]):
        return few
    rows = _suppressed(frame, settings)
    ends = {key: each.sort_values("delta").iloc[0] for key, each in rows.items()}
    parts: list[Part] = []
    for key in BY_PROBABILITY:
        both = pd.concat([rows[key, baseline] for baseline in BASELINES])
        exact = float((both["failure"] - both["success"]).abs().max())
        gap = (both["failure_simulated"] - both["success_simulated"]).groupby(both["seed"]).mean()
        deviations = float(abs(gap.mean()) / max(gap.std() / math.sqrt(len(gap)), 1e-12))
        text = f"{key}: equal, to {exact:.1g} in closed form, {deviations:.1f} standard errors where simulated"
        parts.append((text, exact < 1e-9 and deviations < 5))
    sampling = ends["exact IS", "confidence"]
    text = f"exact IS suppresses both: {share(sampling['failure'])} and {share(sampling['success'])}"
    parts.append((text, bool(max(sampling["failure"], sampling["success"]) < 0.01)))
    for key in ("dg", "dgk"):
        for baseline, words in BASELINES.items():
            end = ends[key, baseline]
            weights = f"{share(end['failure'])}, {share(end['success'])}"
            text = f"{style.label(settings[key])} tells them apart, {words}: {weights}"
            parts.append((text, bool(end["failure"] < 0.05 and end["success"] >= 0.5)))
    return found(
        parts,
        f"mean weights of rare failures and rare successes at δ = {sampling['delta']:g}: "
        + "; ".join(
            f"{style.label(settings[key]) if key in ('dg', 'dgk') else key}{words}: "
            f"{share(ends[key, baseline]['failure'])} and {share(ends[key, baseline]['success'])}"
            for key in settings
            for baseline, words in (BASELINES.items() if key == "dg" else (("confidence", ""),))
            for words in (f", {words}" if words else "",)
        )
        + ". An identity: such a weight has one value wherever π(a) has",
        float(ends["dg", "confidence"]["success"] - ends["dg", "confidence"]["failure"]),
        **studied(frame),
    )


WHY = {
    "D2′": (
        "It depends on the probabilities that the actor reports. Of an actor that does not know of the random samples "
        "they are the learner's own, the weights are one, and the statement holds; exact ones vanish on surprising "
        "failures, and as much on surprising successes, which is D3′."
    ),
}
