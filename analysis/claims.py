"""The papers' claims as predicates over the logs, each with its interval, its verdict and the numbers behind it."""

from __future__ import annotations

from analysis import claims_front, claims_mnist, claims_reversal, claims_studies
from analysis.judge import CLAIMS, INCONCLUSIVE, MIN_SEEDS, NOT, NOT_RUN, PARTLY, REPRODUCED, Claim, Finding

__all__ = [
    "CLAIMS",
    "INCONCLUSIVE",
    "MIN_SEEDS",
    "NOT",
    "NOT_RUN",
    "PARTLY",
    "REPRODUCED",
    "Claim",
    "Finding",
    "claims_front",
    "claims_mnist",
    "claims_reversal",
    "claims_studies",
]
