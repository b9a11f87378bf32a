"""Studies: measurements on softmax bandits in place of training, closed forms beside simulations of the same."""

from kondo.lab.studies import coefficient, contamination, gambling, geometry, ranking, suppression
from kondo.lab.studies.base import Columns, Rule, Study, generators, policies, same, study

COLUMNS = {
    "p": "p = π(y*) of each policy",
    "delta": "δ: how far the policy is from sure",
    "sigma": "σ/Δ: the noise on a reward over the gap between the arms",
    "advantage": "U of each (U, π)",
    "prob": "π(a) of each (U, π)",
    "weight": "w in Σ w U ∇log π, expected over the gate's coin",
    "share": "share of the samples that is kept",
    "cosine": "cosine of the expected update with ∇J",
    "cosine_skewed": "the same where the wrong arms are not equally likely",
    "batch_cosine": "root-mean-square cosine of a batch's update with ∇J",
    "budget_cosine": "the same where B backward passes, rather than B samples, are paid for",
    "parallel": "variance of one sample along ∇J, over the squared mean",
    "perpendicular": "variance of one sample across ∇J, over the squared mean",
    "needed": "samples from which on a batch has the cosine that is asked for, with the probability that is",
    "gain": "first-order progress per sample and unit of step",
    "gain_backward": "the same per backward pass",
    "critical": "α* below which an additive mix ranks failures above successes",
    "misranked": "share of the failures that the priority ranks above a success of the same context",
    "misranked_skewed": "the same where the wrong arms are not equally likely",
    "opened": "share of the bad arm's samples for which the gate opens, at the start",
    "stall": "the error at which the gate at λ = 0 stops learning, noise on the bad arm alone",
    "updates": "after how many updates `mean_field` and `learned` are",
    "mean_field": "1 − p under the expected update, by σ and number of updates",
    "learned": "1 − p of a simulated learner, by σ and number of updates",
    "collapse": "cosine of PG's expected update with ∇J, to leading order in δ",
    "blind": "the highest cosine of any weight that does not see the sign of the advantage",
    "batch_blind": "the same for the update of a batch",
    "factor": "second moment across ∇J of surprising failures, over PG's",
    "failure": "mean weight of rare failures",
    "success": "mean weight of rare successes",
}
"""What studies log, a list where a setting has several values; with `_simulated` the same by simulation."""

__all__ = [
    "COLUMNS",
    "Columns",
    "Rule",
    "Study",
    "coefficient",
    "contamination",
    "gambling",
    "generators",
    "geometry",
    "policies",
    "ranking",
    "same",
    "study",
    "suppression",
]
