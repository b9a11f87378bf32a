"""Actors in processes of their own, on Ray: lockstep, with parameters of a scripted age, and asynchronous.

workers.py      what runs elsewhere: an actor, and the exchange of parameters and batches between actors and learner
actors.py       what stands in their place in the learner's process
"""

from __future__ import annotations

import importlib.util

from kondo.schema import Unavailable


def available(mode: str) -> None:
    """Refuse, before any work, actors elsewhere where there is no Ray."""
    if mode != "inline" and importlib.util.find_spec("ray") is None:
        raise Unavailable(f"actor.mode={mode}: needs ray; pip install 'kondo[ray]', or actor.mode=inline")
