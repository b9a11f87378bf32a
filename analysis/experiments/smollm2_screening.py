"""Screening a pretrained language model (SmolLM2, 135M): what cheaper passes find, and what is learned from it."""

from __future__ import annotations

from analysis.experiments.llm_screening import measured as measured
from analysis.experiments.llm_screening import plot as plot
from analysis.experiments.llm_screening import select as select
