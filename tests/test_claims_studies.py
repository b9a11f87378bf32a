"""The claims that studies decide in worlds where their verdict is known."""

import math

import numpy as np
import pytest

from analysis import stats, studies, tables
from analysis.judge import INCONCLUSIVE, NOT, PARTLY, REPRODUCED
from tests.worlds import CLAIMS, PATTERNS, SEEDS, World, dgk, frame, study

FREE = dgk(None, 0.0)
PG, DG, IS = ({"method.name": name} for name in ("pg", "dg", "is_pg"))
PROBS = [0.001, 0.005, 0.02, 0.1, 0.5]


def geometry(cosine=1.0, across=0.0, bought=1.0, free=-2.0, expected=-2.0, gate=0.0, noise=0.0):
    """J1, J2: what the gate does at λ = 0, and the powers of p of PG's samples and of the gate's backward passes; above
    p = 0.02 none of them is a power."""
    cells = []
    for columns, baseline, power in (
        (PG, "confidence", free),
        (PG, "oracle", expected),
        (FREE, "confidence", gate - 1),
        (FREE, "oracle", gate - 1),
        (DG, "confidence", -2.0),
    ):
        for arms, wrong in ((10, 0), (100, 5)):  # with 100 arms other powers

            def needed(seed, power=power + wrong):
                own = power + noise * PATTERNS[0][seed]
                return [p**own if p <= 0.02 else 1.0 for p in PROBS]

            ours = columns is FREE
            cells.append(
                study(
                    {"task.name": "gradient_geometry", "task.arms": arms, "task.baseline": baseline, "task.delta": 0.1}
                    | columns,
                    p=PROBS,
                    needed=[1.0] * 5,
                    needed_simulated=needed,
                    share_simulated=[p * (bought if ours else 1) for p in PROBS],
                    cosine=[1.0] * 5 if ours else [0.5] * 5,
                    cosine_skewed=[1.0] * 5 if ours else [0.5] * 5,
                    cosine_simulated=[1.0, 1.0, 1.0, cosine, 1.0] if ours else [0.5] * 5,
                    perpendicular_simulated=[0.0, across, 0.0, 0.0, 0.0] if ours else [0.5] * 5,
                )
            )
    return frame(*cells)


def prices(best, pg=0.5, dg=0.5, noise=0.0):
    """J12-price: the batch cosine of the best of five gates; one that saves nothing is higher and does not count."""
    gates = {-5.0: (0.95, 0.99), -1.0: (0.1, 0.8), 0.0: (best, 0.3), 0.5: (0.1, 0.2), 1.0: (0.1, 0.1), 2.0: (0.1, 0.05)}
    every = [(PG, pg, 1.0), (DG, dg, 1.0), *((dgk(None, price), *each) for price, each in gates.items())]
    return frame(
        *(
            study(
                {"task.name": "price_geometry"} | columns,
                batch_cosine_simulated=lambda seed, c=cosine, n=noise * (cosine == best): c + n * PATTERNS[0][seed],
                share=share,
                gain_backward=1 / share,
            )
            for columns, cosine, share in every
        )
    )


RANKED = [0.05, 0.3, 0.9]


def ranking(flipped=False, delight=0.0, delight_skewed=0.0):
    """J3: points on the predicted side of α*, or one that is not; what delight mis-ranks."""
    cells = []
    for arms in (10, 100):
        task = {"task.name": "priority_ranking", "task.arms": arms}
        surplus = [max(0.0, math.log(p * (arms - 1) / (1 - p))) for p in RANKED]
        critical = [each / (1 + each) for each in surplus]
        for alpha in (0.1, 0.6, 0.9):
            sides = [float(alpha < each) for each in critical]
            if flipped and alpha == 0.6:
                sides = [1 - side for side in sides]
            columns = dgk(None, 0.0, **{"gate.priority": "additive", "gate.alpha": alpha})
            skewed = {"misranked_skewed_simulated": [0.3] * 3}
            cells.append(study(task | columns, p=RANKED, critical=critical, misranked_simulated=sides, **skewed))
        ranks = {"misranked_simulated": [0.0, delight, 0.0], "misranked_skewed_simulated": [0.0, 0.0, delight_skewed]}
        cells.append(study(task | FREE, p=RANKED, critical=critical, **ranks))
    return frame(*cells)


SIGMAS = [0.1, 0.3, 1.0, 3.0, 10.0]


def gambling(quiet, loud, bad, both, noise=0.0):
    """J4: how much above the bound the gate opens for σ ≤ 0.3Δ, and how often for σ ≥ 3Δ; by how much DG and DG-K end
    above PG at σ = 3Δ, with noise on the bad arm and on both. At other σ, and before the end, it is the other way."""
    cells = []
    for place, (columns, ours) in enumerate(((PG, 0), (DG, 1), (FREE, 1))):
        for arms, gap in (("bad", bad), ("both", both)):

            def opened(seed):
                bound = [0.5 * math.exp(-((0.5 / sigma) ** 2) / 2) for sigma in SIGMAS[:2]]
                shift = noise * PATTERNS[5][seed]
                return [*(each + quiet + shift for each in bound), 0.9, loud + shift, loud + shift]

            def learned(seed, ours=ours, gap=gap, place=place):
                end = 0.3 + ours * (gap + noise * PATTERNS[place][seed])
                return [[0.5, end if sigma == 3 else 0.3 - ours * gap] for sigma in SIGMAS]

            task = {"task.name": "gambling", "task.noise": arms, "task.start": 0.5}
            cells.append(study(task | columns, sigma=SIGMAS, opened_simulated=opened, learned=learned))
    return frame(*cells)


DELTAS = [0.5, 0.001, 0.1]


def contamination(pg, dg, blind=(0.9, 0.9), noise=0.0, cosine=0.95, batch=0.95):
    """D2-bandit, D3: batch cosines at the largest δ and at the smallest; the best sign-blind weight's against DG's."""
    cells = []
    for place, (columns, ends) in enumerate(((PG, pg), (DG, dg), (FREE, (0.1, 0.2)), (IS, (0.8, 0.8)))):

        def simulated(seed, ends=ends, place=place):
            return [ends[0], ends[1] + noise * PATTERNS[place][seed], 2.0]

        ours = columns is DG  # only at the smallest δ is the comparison as it was asked for
        cells.append(
            study(
                {"task.name": "contamination"} | columns,
                delta=DELTAS,
                cosine=[2 - cosine if ours else 0.5, cosine if ours else 0.5, 2 - cosine],
                batch_cosine=[2 - batch, batch if ours else 0.5, 2 - batch],
                blind=[2 - blind[0], blind[0], 2 - blind[0]],
                batch_blind=[2 - blind[1], blind[1], 2 - blind[1]],
                collapse=[0.1] * 3,
                batch_cosine_simulated=simulated,
            )
        )
    return frame(*cells)


SURE = [1e-4, 1e-3, 1e-2, 0.1]
SURPRISAL = [
    dgk(None, 6.0, **{"gate.priority": "surprisal", "gate.mode": mode}) for mode in ("hard", "soft", "bernoulli")
]


def suppression(
    power=2.0,
    sampling=0.0,
    last=1e-5,
    noise=0.0,
    gap=0.0,
    gap_simulated=0.0,
    sampled=0.001,
    dg=(0.01, 0.6),
    gate=(0.0, 1.0),
):
    """D2′, D3′: powers of δ of the factors of DG and of IS, and DG's at the smallest δ; the weights of rare failures
    and successes, their difference where it should be none; above δ = 0.01 there is no power."""
    cells = []
    for baseline in ("confidence", "half"):
        for columns in (PG, IS, DG, FREE, *SURPRISAL):
            own = {"pg": 0.0, "is_pg": sampling, "dg": power}.get(columns["method.name"], 0.0)
            weights = {"dg": dg, "is_pg": (sampled, sampled + gap), "dgk": gate}.get(columns["method.name"], (1.0, 1.0))
            if columns in SURPRISAL:
                weights = (0.5, 0.5 + gap)
            blind = columns in SURPRISAL or columns is IS

            def simulated(seed, own=own):
                return [delta ** (own + noise * PATTERNS[0][seed]) if delta <= 0.01 else 1.0 for delta in SURE]

            def success(seed, weights=weights, blind=blind):
                shift = gap_simulated + 0.01 * PATTERNS[0][seed] if blind else 0.0
                return [weights[1] + shift] * 4

            cells.append(
                study(
                    {"task.name": "suppression", "task.baseline": baseline} | columns,
                    delta=SURE,
                    factor=[last if columns is DG else 1.0, 1.0, 1.0, 1.0],
                    factor_simulated=simulated,
                    failure=[weights[0], 0.5, 0.5, 0.5],
                    success=[weights[1], 0.5, 0.5, 0.5],
                    failure_simulated=[weights[0]] * 4,
                    success_simulated=success,
                )
            )
    return frame(*cells)


PLACES = [(u, p) for u in (-0.8, 0.5) for p in (0.01, 0.7)]


def coefficients(warm=0.0, cold=0.0):
    """DG-gate: how many standard errors the coin is from DG's weight; how far from the hard gate's where |χ| > 1."""
    chi = np.array([-u * math.log(p) for u, p in PLACES])
    dg, hard = 1 / (1 + np.exp(-chi)), (chi > 0).astype(float)
    error = np.sqrt(dg * (1 - dg) / (100 * SEEDS))
    coin = {"gate.mode": "bernoulli"}
    far = cold * (np.abs(chi) > 1) + 0.5 * (np.abs(chi) <= 1)  # near χ = 0 a coin is no gate
    columns = {"advantage": [u for u, _ in PLACES], "prob": [p for _, p in PLACES]}
    task = {"task.name": "gate_coefficient", "task.batch": 100}
    wrong = [0.33] * 4
    cells = [
        (DG, dg, wrong),
        (FREE, hard, wrong),
        (dgk(None, 0.0, **coin, **{"gate.temperature": 1.0}), wrong, dg + warm * error),
        (dgk(None, 0.0, **coin, **{"gate.temperature": 0.1}), wrong, hard + far),
        (dgk(None, 0.5, **coin, **{"gate.temperature": 0.1}), wrong, wrong),
        (dgk(None, 0.5), wrong, wrong),
    ]
    return frame(
        *(
            study(task | setting, weight=list(weight), weight_simulated=list(drawn), **columns)
            for setting, weight, drawn in cells
        )
    )


WORLDS = [
    World("J1", "true", lambda: geometry(cosine=1 - 5e-7, across=5e-10, bought=1.01), REPRODUCED, "hhh", 1 - 5e-7),
    World("J1", "false", lambda: geometry(cosine=1 - 5e-6, across=5e-9, bought=1.1), NOT, "fff", 1 - 5e-6),
    World("J1", "too few bought", lambda: geometry(bought=0.9), PARTLY, "hhf", 1.0),
    World("J2", "true", lambda: geometry(free=-1.8, expected=-1.8, gate=0.05), REPRODUCED, "hhh", -1.8),
    World("J2", "false", lambda: geometry(free=-1.7, expected=-1.7, gate=0.5), NOT, "fff", -1.7),
    World("J2", "noisy PG", lambda: geometry(free=-1.8, expected=-1.7, noise=0.3), PARTLY, "ooh", -1.8),
    World("J2", "one baseline", lambda: geometry(free=-2.0, expected=-1.0, gate=-0.5), PARTLY, "hff", -2.0),
    World("J12-price", "true", lambda: prices(0.51), REPRODUCED, "hh", 0.01),
    World("J12-price", "false", lambda: prices(0.49), NOT, "ff", -0.01),
    World("J12-price", "noisy", lambda: prices(0.6, noise=0.096), INCONCLUSIVE, "oo", 0.1),
    World("J12-price", "above DG alone", lambda: prices(0.51, pg=0.6), PARTLY, "fh", -0.09),
    World("J3", "true", ranking, REPRODUCED, "hh", 1.0),
    World("J3", "false", lambda: ranking(flipped=True, delight=0.01), NOT, "ff", 2 / 3),
    World("J3", "delight, unequal arms", lambda: ranking(delight_skewed=0.01), PARTLY, "hf", 1.0),
    World("J4", "true", lambda: gambling(-0.001, 0.26, 0.06, 0.04), REPRODUCED, "hhhhhh", 0.06),
    World("J4", "false", lambda: gambling(0.001, 0.24, 0.04, 0.06), NOT, "ffffff", 0.04),
    World("J4", "noisy", lambda: gambling(-0.001, 0.26, 0.06, 0.04, noise=0.1), INCONCLUSIVE, "oooooo", 0.06),
    World("D2-bandit", "true", lambda: contamination((0.5, 0.4), (0.8, 0.9)), REPRODUCED, "hh", 0.1),
    World("D2-bandit", "false", lambda: contamination((0.4, 0.5), (0.9, 0.8)), NOT, "ff", -0.1),
    World("D2-bandit", "noisy", lambda: contamination((0.5, 0.4), (0.8, 0.9), noise=0.2), INCONCLUSIVE, "oo", 0.1),
    World("D3", "true", lambda: contamination((0.5, 0.4), (0.8, 0.9)), REPRODUCED, "hh", 0.1),
    World("D3", "false", lambda: contamination((0.5, 0.4), (0.8, 0.9), (0.96, 0.96)), NOT, "ff", 0.1),
    World("D3", "a batch alone", lambda: contamination((0.5, 0.4), (0.8, 0.9), (0.96, 0.9)), PARTLY, "fh", 0.1),
    World("D2′", "true", lambda: suppression(power=0.6, last=0.005), REPRODUCED, "hhhh", 0.6),
    World("D2′", "false for DG", lambda: suppression(power=0.4, last=0.05, sampling=0.06), PARTLY, "ffhf", 0.4),
    World("D2′", "small at last", lambda: suppression(power=2.0, last=0.05), PARTLY, "ffhh", 2.0),
    World("D2′", "false", lambda: suppression(power=0.4, sampling=0.4, noise=1e-9).pipe(_shrinking), NOT, "ffff", 0.4),
    World("D2′", "noisy", lambda: suppression(power=0.6, noise=0.3), INCONCLUSIVE, "oooo", 0.6),
    World("D2′", "as it came out", lambda: suppression(power=2.0, sampling=2.0), PARTLY, "hhhf", 2.0),
    World("D3′", "true", suppression, REPRODUCED, 9 * "h", 0.59),
    World("D3′", "false", lambda: suppression(gap=1e-3, sampled=0.05, dg=(0.06, 0.6), gate=(0.0, 0.4)), NOT, 9 * "f"),
    World("D3′", "one in a billion", lambda: suppression(gap=5e-9), PARTLY, "ffffhhhhh", 0.59),
    World("D3′", "six standard errors", lambda: suppression(gap_simulated=0.0227), PARTLY, "ffffhhhhh", 0.59),
    World("D3′", "four", lambda: suppression(gap_simulated=0.0151), REPRODUCED, 9 * "h", 0.59),
    World("D3′", "DG drops successes", lambda: suppression(dg=(0.01, 0.4)), PARTLY, "hhhhhffhh", 0.39),
    World("DG-gate", "true", lambda: coefficients(warm=4.9, cold=0.009), REPRODUCED, "hh", 4.9),
    World("DG-gate", "false", lambda: coefficients(warm=-5.1, cold=0.011), NOT, "ff", 5.1),
]


def _shrinking(made):
    """PG's factor shrinks too."""
    theirs = made["method.name"] == "pg"
    return made.assign(
        factor_simulated=[
            [delta**0.2 for delta in SURE] if shrinks else values
            for shrinks, values in zip(theirs, made["factor_simulated"], strict=True)
        ]
    )


@pytest.mark.parametrize("world", WORLDS, ids=str)
def test_a_claim_is_judged_as_its_world_was_made(world):
    world.check()


def test_a_slope_is_the_power_of_each_seed():
    made = studies.unfold(geometry(free=-1.3, noise=0.2), ["p", "needed_simulated"])
    rows = tables.matching(made, {"method.name": "pg", "task.baseline": "confidence", "task.arms": 10})
    found = studies.slope(rows[rows["p"] <= 0.02], "p", "needed_simulated")
    expected = stats.bootstrap(-1.3 + 0.2 * PATTERNS[0])
    assert (found.mean, found.low, found.high) == pytest.approx((expected.mean, expected.low, expected.high))


def test_a_missing_method_of_a_study_is_named():
    made = suppression()
    record = CLAIMS["D3′"].judge(made[made["gate.mode"] != "soft"])
    assert record["detail"].startswith("no runs of DG-K, surprisal")
