"""One module per experiment, named as its conf/experiment/<name>.yaml, whose docstring's first line is its title:

    select(frame) → the table that is plotted
    plot(table) → the figure
    measured(table) → what it shows, in words, where no claim is decided by it
    @claim(…) check(frame) → a finding, for each claim that it decides
    beside(frame) → ours at every published point, where there is a published curve
    WHY = {claim: words} → the most likely reason why it was not reproduced at paper scale; an opinion

A module that is here is drawn, judged and reported; there is no list of them. Judging imports no matplotlib.
"""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType

from analysis.judge import CLAIMS, Claim, order


def experiments() -> dict[str, ModuleType]:
    """Every experiment's module, by name."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    return {name: importlib.import_module(f"{__name__}.{name}") for name in names}


def claims() -> dict[str, Claim]:
    """Every claim that an experiment decides, by id, in the order of the report."""
    experiments()
    return {id: CLAIMS[id] for id in sorted(CLAIMS, key=order)}
