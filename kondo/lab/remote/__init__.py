"""Actors in processes of their own, on Ray: lockstep, with parameters of a scripted age, and asynchronous.

workers.py      what runs elsewhere: an actor, and the exchange of parameters and batches between actors and learner
actors.py       what stands in their place in the learner's process
"""

from __future__ import annotations

import importlib.util

from kondo.schema import Unavailable

COLUMNS = {
    "schedule": "number of each batch since the last evaluation, and its version: the step whose parameters sampled it",
    "age_s": "of each of these batches, how many seconds ago its parameters were the newest",
    "learner_idle": "seconds that the learner waited for batches",
    "actor_busy": "seconds that actors took for the batches that the learner had",
    "actor_idle": "seconds that actors waited, for parameters and for room in the queue",
    "queued": "batches that were waiting when the learner took one, summed",
    "wall": "seconds by the clock, evaluations included",
    "restarts": "how often an actor was begun anew",
}
"""What an asynchronous run logs of how its batches came about, the same for every seed; totals unless said."""


def available(mode: str) -> None:
    """Refuse, before any work, actors elsewhere where there is no Ray."""
    if mode != "inline" and importlib.util.find_spec("ray") is None:
        raise Unavailable(f"actor.mode={mode}: needs ray; pip install 'kondo[ray]', or actor.mode=inline")
