"""Studies: measurements on softmax bandits in place of training, closed forms beside simulations of the same."""

from kondo.lab.studies import coefficient, contamination, gambling, geometry, ranking, suppression
from kondo.lab.studies.base import Columns, Rule, Study, generators, policies, same, study

__all__ = [
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
