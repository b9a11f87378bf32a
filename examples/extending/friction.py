# /// script
# requires-python = ">=3.11"
# dependencies = ["kondo"]
#
# [tool.uv.sources]
# kondo = { path = "../.." }
# ///
"""Adds a friction: an actor that ignores the context of some samples, and answers the one next to it instead.

python examples/extending/friction.py
KONDO_EXTENSIONS=examples/extending python -m experiments.run -m friction=none,inattention method=pg,dg scale=smoke
"""

from __future__ import annotations

from dataclasses import dataclass

from kondo import lab
from kondo.lab.actor import Batch
from kondo.lab.frictions import Friction, friction
from kondo.lab.streams import Streams
from kondo.schema import knob


@friction
@dataclass(frozen=True)
class Inattention(Friction):
    """The action of the next sample in place of the sample's own, reported with the policy's own probability."""

    prob: float = knob(0.2, low=0, high=1)
    """q: how often."""

    def idle(self) -> bool:
        return self.prob == 0

    def on_actions(self, batch: Batch, streams: Streams, step: int) -> Batch:
        ignored = streams.uniform("inattention", step, batch.rows) < self.prob
        return batch.with_actions(ignored, batch.actions.roll(1, dims=1))


def main() -> None:
    for prob in (0.0, 0.2, 0.8):
        for method in ("pg", "dg"):
            cell = {"task": {"name": "bandit", "contexts": 20}, "method": {"name": method}}
            cell |= {"friction": {"inattention": {"prob": prob}}, "optimizer": {"lr": 0.03}, "steps": 200}
            rows = lab.train(cell, seeds=4)
            errors = [row["policy_error"] for row in rows if row["step"] == 200]
            print(f"q = {prob}, {method}: error {sum(errors) / len(errors):.3f}")


if __name__ == "__main__":
    main()
