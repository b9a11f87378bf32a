"""Confidence intervals by a seeded bootstrap over seeds: the same logs always give the same interval."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

RESAMPLES = 10_000


@dataclass(frozen=True)
class Interval:
    mean: float
    low: float
    high: float


def bootstrap(values: ArrayLike, level: float = 0.95) -> Interval:
    """Percentile interval of the mean. With a single value it is as wide as a line is long: there is none."""
    sample = np.asarray(values, dtype=float)
    if len(sample) < 2:
        mean = float(sample.mean()) if len(sample) else np.nan
        return Interval(mean, -np.inf, np.inf)
    draws = np.random.default_rng(0).integers(len(sample), size=(RESAMPLES, len(sample)))
    low, high = np.quantile(sample[draws].mean(axis=1), [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(sample.mean()), float(low), float(high))


def paired(ours: pd.Series, theirs: pd.Series, level: float = 0.95) -> Interval:
    """Interval of the mean difference ours − theirs, over the seeds that both have (the index)."""
    return bootstrap((ours - theirs).dropna(), level)


def pareto_front(cost: ArrayLike, loss: ArrayLike) -> np.ndarray:
    """Which points no other beats in both, as a mask. Of equal points the first stays."""
    cost, loss = np.asarray(cost, dtype=float), np.asarray(loss, dtype=float)
    front = np.zeros(len(cost), dtype=bool)
    best = np.inf
    for i in np.lexsort((loss, cost)):
        if loss[i] < best:
            front[i], best = True, loss[i]
    return front
