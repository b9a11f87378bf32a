"""Confidence intervals by a seeded bootstrap over seeds: the same logs always give the same interval."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy.stats import norm as normal
from scipy.stats import t as student

RESAMPLES = 10_000
RESOLUTION = 1e-9
"""In a factor a value below this, say an error of exactly 0, counts as this."""


@dataclass(frozen=True)
class Interval:
    mean: float
    low: float
    high: float


def bootstrap(values: ArrayLike, level: float = 0.95) -> Interval:
    """Percentile interval of the mean, widened for small samples; a single value has none.

    The plain percentile interval of n values is too narrow by z/t · √((n−1)/n): both tails are stretched by the
    inverse, so that it is right for normal values and keeps the skew of others.
    """
    sample = np.asarray(values, dtype=float)
    if not len(sample):
        return Interval(np.nan, -np.inf, np.inf)
    return resampled(sample, lambda drawn: drawn.mean(axis=-1), level)


def factor(theirs: pd.Series, ours: pd.Series, level: float = 0.95) -> Interval:
    """Interval of the factor between two means, theirs over ours, over the seeds that both have (the index).

    Seeds are drawn in pairs. The interval is made on the logarithm, where a factor and its inverse are equally far.
    """
    both = pd.concat([theirs, ours], axis=1).dropna().to_numpy(dtype=float).clip(RESOLUTION)
    logs = resampled(both.T, lambda drawn: np.log(drawn[0].mean(axis=-1) / drawn[1].mean(axis=-1)), level)
    return Interval(*np.exp([logs.mean, logs.low, logs.high]))


def resampled(sample: np.ndarray, of: Callable[[np.ndarray], np.ndarray], level: float = 0.95) -> Interval:
    """The interval of a statistic that reduces the last axis, along which the sample is drawn."""
    n, value = sample.shape[-1], float(of(sample))
    if n < 2:
        return Interval(value, -np.inf, np.inf)
    tail = (1 - level) / 2
    tails = np.quantile(of(sample[..., _draws(n)]), [tail, 1 - tail]) - value
    stretch = student.ppf(1 - tail, n - 1) / normal.ppf(1 - tail) * np.sqrt(n / (n - 1))
    low, high = value + stretch * tails
    return Interval(value, float(low), float(high))


@functools.lru_cache(maxsize=64)
def _draws(n: int) -> np.ndarray:
    """Which of n values each resample takes: the same every time."""
    return np.random.default_rng(0).integers(n, size=(RESAMPLES, n))


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
