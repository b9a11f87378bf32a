"""Problems whose answers can be checked, as prompts that a base model understands: two examples, then the question."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kondo.schema import Unavailable

Make = Callable[[int, int], "Problem"]


@dataclass(frozen=True)
class Problem:
    prompt: str
    answer: str

    def reward(self, text: str) -> float:
        """1 if the text, spaces aside, is the answer."""
        return float(text.strip() == self.answer)


def sums(seed: int, index: int) -> Problem:
    """Two digits and their sum, a digit too; needs no package."""
    drawn = random.Random(f"{seed} {index}")
    total = drawn.randrange(10)
    first = drawn.randint(0, total)
    return Problem(f"2 + 3 = 5\n4 + 4 = 8\n{first} + {total - first} =", str(total))


def chain_sum(seed: int, index: int) -> Problem:
    """reasoning-gym's: two numbers of one digit, added or subtracted."""
    entry = _entry("chain_sum", seed, index, min_terms=2, max_terms=2, min_digits=1, max_digits=1)
    return Problem(f"2 + 3 = 5\n4 - 7 = -3\n{entry['question'].rpartition(': ')[2]}", entry["answer"])


def spell_backward(seed: int, index: int) -> Problem:
    """reasoning-gym's: a word of three letters, backwards."""
    entry = _entry("spell_backward", seed, index, min_word_len=3, max_word_len=3)
    return Problem(f"sun -> nus\ncat -> tac\n{entry['question'].rpartition(': ')[2]} ->", entry["answer"])


def letter_counting(seed: int, index: int) -> Problem:
    """reasoning-gym's: how often a letter is in two words."""
    entry = _entry("letter_counting", seed, index, min_words=1, max_words=2)
    return Problem(f"{entry['question']} Answer:", entry["answer"])


PROBLEMS: dict[str, Make] = {each.__name__: each for each in (sums, chain_sum, spell_backward, letter_counting)}


def problems(name: str, seed: int, indices: Sequence[int]) -> list[Problem]:
    """The same problem for the same seed and index, always."""
    return [PROBLEMS[name](seed, index) for index in indices]


def _entry(name: str, seed: int, index: int, **settings: Any) -> Any:
    try:
        import reasoning_gym
    except ImportError:
        raise Unavailable(
            f"task.problem={name}: needs reasoning-gym; pip install 'kondo[lm]', or task.problem=sums"
        ) from None
    return reasoning_gym.create_dataset(name, size=index + 1, seed=seed, **settings)[index]
