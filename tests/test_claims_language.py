"""The claims about a pretrained language model in worlds where their verdict is known."""

import numpy as np
import pytest

from analysis.judge import INCONCLUSIVE, NOT, PARTLY, REPRODUCED
from tests.worlds import PATTERNS, World, dgk, frame, runs

TASK = {"task.name": "language", "task.model": "smollm2", "task.problem": "chain_sum", "task.delight": "token"}
PG = TASK | {"method.name": "pg"}
WAYS = ("token", "response", "token_scaled", "response_scaled")


def kept(rate, by="delight", reserve=0.0):
    return TASK | dgk(rate) | {"gate.priority": by, "gate.reserve": reserve}


def ways(*gaps, noise=0.0):
    """L1: how far above PG each way of DG ends."""
    dg = [
        runs(PG | {"method.name": "dg", "task.delight": way}, 0.3 + gap, noise=noise)
        for way, gap in zip(WAYS, gaps, strict=True)
    ]
    return frame(runs(PG, 0.3), *dg, runs(kept(0.1), 0.9))


def gates(*gaps, noise=0.0):
    """L2: how far above delight advantage and chance end at 10%, and at 30%; half at random is something else."""
    cells = [runs(kept(rate), 0.3, noise=noise) for rate in (0.1, 0.3)]
    names = [(rate, by) for rate in (0.1, 0.3) for by in ("advantage", "uniform")]
    cells += [runs(kept(rate, by), 0.3 + gap) for (rate, by), gap in zip(names, gaps, strict=True)]
    return frame(*cells, runs(PG, 0.3), runs(kept(0.3, reserve=0.5), 0.9))


def savings(share, gap, noise=0.0):
    """L3: seconds of DG-K's step over PG's, and how far above PG it ends."""
    spent = {"seconds_rollout": 0.3, "seconds_backward": 0.7, "graph_mib": 100.0}
    ours = {name: value * share for name, value in spent.items()}
    others = [runs(columns, 0.9, **spent) for columns in (kept(0.3), kept(None) | {"gate.price": 0.0})]
    made = frame(runs(PG, 0.3, **spent), runs(kept(0.1), 0.3 + gap, noise=noise, **ours), *others)
    scale = np.where(made["gate.rate"] == 0.1, 1 + 5 * noise * PATTERNS[0][made["seed"]], 1.0)
    return made.assign(seconds_backward=made["seconds_backward"] * scale)


WORLDS = [
    World("L1", "true", lambda: ways(0.019, -0.019, 0.0, 0.01), REPRODUCED, "hhhh", 0.019),
    World("L1", "false", lambda: ways(0.03, -0.03, 0.021, 0.5), NOT, "ffff", 0.03),
    World("L1", "one is not", lambda: ways(0.0, 0.0, -0.03, 0.0), PARTLY, "hhfh", 0.0),
    World("L1", "noisy", lambda: ways(0.01, -0.01, 0.03, -0.03, noise=0.03), INCONCLUSIVE, "oooo", 0.01),
    World("L2", "true", lambda: gates(0.01, 0.2, 0.01, 0.2), REPRODUCED, "hhhh", -0.01),
    World("L2", "false", lambda: gates(-0.01, -0.2, -0.01, 0.0), NOT, "ffff", 0.01),
    World("L2", "only at 30%", lambda: gates(-0.01, -0.1, 0.1, 0.1), PARTLY, "ffhh", 0.01),
    World("L2", "noisy", lambda: gates(0.01, 0.02, -0.01, 0.03, noise=0.05), INCONCLUSIVE, "oooo", -0.01),
    World("L3", "true", lambda: savings(0.49, 0.019), REPRODUCED, "hh", 0.49),
    World("L3", "false", lambda: savings(0.51, 0.021), NOT, "ff", 0.51),
    World("L3", "slow", lambda: savings(0.6, -0.1), PARTLY, "fh", 0.6),
    World("L3", "noisy", lambda: savings(0.48, 0.015, noise=0.05), INCONCLUSIVE, "oo", 0.48),
]


@pytest.mark.parametrize("world", WORLDS, ids=str)
def test_a_claim_is_judged_as_its_world_was_made(world):
    world.check()
