"""Policy gradient on a language model, one seed after the other: sample answers, check them, keep what pays, learn."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from kondo import packing
from kondo.gate import KondoGate
from kondo.integrations.transformers import Rollout, decisions, rollout
from kondo.lab.config.cell import Cell
from kondo.lab.engine import Mean, eval_steps, number
from kondo.lab.language.model import Speaker, load
from kondo.lab.language.problems import Problem, problems
from kondo.lab.language.screening import LanguageScreen
from kondo.lab.ledger import Ledger
from kondo.lab.streams import Streams
from kondo.lab.tasks.language import Language
from kondo.objectives import METHODS, needs
from kondo.signals import delight as delight_of

HELD_OUT = -1
"""The seed of the problems that all evaluations look at."""
KEPT = 0.9
"""How much of the running mean square of surprisal a step keeps."""


class Student:
    """One seed: a model, its optimizer, its gate, and how surprised it has been."""

    def __init__(self, cell: Cell, seed: int, device: torch.device | str) -> None:
        assert isinstance(cell.task, Language)
        self.cell, self.task, self.seed, self.device = cell, cell.task, seed, device
        self.speaker: Speaker = load(self.task.model, seed, device)
        kinds = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}
        self.optimizer = kinds[cell.optimizer.name](self.speaker.model.parameters(), lr=cell.optimizer.lr)
        self.gate = None if cell.gate is None else KondoGate(cell.gate)
        self.screen = LanguageScreen(cell.screen, self.speaker.model)
        self.exact = None if cell.gate is None else KondoGate(cell.gate)
        """The same gate with an exact screen: what it would keep, for the recall of ours."""
        self.square = math.nan  # running mean square of surprisal
        self.worthy = self.found = 0
        """How many answers exact delight would have kept since the last evaluation, and how many of these were."""

    def answers(self, step: int, chance: int) -> tuple[Rollout, Tensor]:
        """Sampled answers to fresh problems, and their rewards. [B, T], [B]"""
        task = self.task
        asked = problems(task.problem, self.seed, range(step * task.prompts, (step + 1) * task.prompts))
        asked = [each for each in asked for _ in range(task.samples)]
        ids, real = self.speaker.prompts([each.prompt for each in asked], self.device)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(chance)
            batch = rollout(
                self.speaker.model,
                ids,
                real,
                max_new_tokens=task.length,
                eos_token_id=list(self.speaker.ends),
                pad_token_id=self.speaker.ends[0],
            )
        said = [self.speaker.text(answer) for answer in batch.answers()]
        rewards = [each.reward(text) for each, text in zip(asked, said, strict=True)]
        return batch, torch.tensor(rewards, device=self.device)

    def advantages(self, rewards: Tensor) -> Tensor:
        """U = R − mean R of the group; exactly 0 where all of it were paid alike. [B]"""
        groups = rewards.view(-1, self.task.samples)
        alike = (groups == groups[:, :1]).all(1, keepdim=True)
        return torch.where(alike, 0.0, groups - groups.mean(1, keepdim=True)).flatten()

    def delight(self, batch: Rollout, log_probs: Tensor, advantages: Tensor) -> Tensor:
        """χ of each token as DG weighs it: its own or its answer's, of surprisal as it is or scaled. [B, T]"""
        chosen = batch.action_mask.float()
        square = float((log_probs.square() * chosen).sum() / chosen.sum())
        self.square = square if math.isnan(self.square) else KEPT * self.square + (1 - KEPT) * square
        scale = math.sqrt(self.square) if self.task.delight.endswith("scaled") else 1.0
        each = delight_of(log_probs / max(scale, 1e-12), advantages.unsqueeze(-1).expand_as(chosen)) * chosen
        if self.task.delight.startswith("response"):
            return (each.sum(1, keepdim=True) / chosen.sum(1, keepdim=True)).expand_as(each)
        return each

    def update(self, batch: Rollout, advantages: Tensor, ledger: Ledger, place: Tensor) -> tuple[float, float]:
        """One step on what is kept; how many MiB the graph held, and the price. place: [S], 1 at this seed's."""
        task, chosen = self.task, batch.action_mask.bool()
        assert batch.log_probs is not None
        with ledger.phase("screen"):
            log_probs = self.screen.log_probs(batch)
            self.screen.observe()
            delights, weights, price = self.delight(batch, log_probs, advantages), chosen.float(), math.nan
            if self.gate is not None:
                decision, weights = self.gate.decide(log_probs, advantages, batch.action_mask)
                price = float(decision.price)
        if self.exact is not None:
            worthy = self.exact.decide(batch.log_probs, advantages, batch.action_mask)[0].keep
            self.worthy, self.found = self.worthy + int(worthy.sum()), self.found + int((worthy & decision.keep).sum())
        named = {
            "advantage": advantages.unsqueeze(-1).expand_as(weights),
            "delight": delights,
            "actor_log_prob": batch.log_probs,
            "weight": weights,
        }
        objective, size = METHODS[self.cell.method], chosen.sum()
        rows, tokens, held = 0, 0, 0.0
        self.optimizer.zero_grad()
        with ledger.phase("backward"):
            for pack in packing.packs((weights != 0) & chosen, batch.attention_mask):
                with graph_bytes() as seen:
                    own, _ = pack.log_probs(self.speaker.model, batch.input_ids, batch.actions, batch.attention_mask)
                    given = {"log_prob": own} | {name: pack.decisions(value) for name, value in named.items()}
                    loss = objective(*(given[name] for name in needs(objective)), **self.cell.options)
                    (loss.masked_fill(pack.decisions(weights) == 0, 0.0).sum() / size).backward()
                rows, tokens, held = rows + len(pack.rows), tokens + pack.tokens, max(held, sum(seen.values()))
        if rows:
            with ledger.phase("optimizer"):
                self.optimizer.step()
        asked = task.batch if self.gate is None else task.batch * (self.gate.settings.rate or rows / task.batch)
        ledger.add(nominal=place * asked, backward=place * rows, backward_tokens=place * tokens)
        ledger.add(updates=place * float(rows > 0), screened=place * task.batch * self.screen.passes)
        return held / 2**20, price

    @torch.no_grad()
    def examine(self) -> dict[str, float]:
        """answer_error: 1 − π(the answer and its end), over held-out problems: the chance of any answer but the right
        one as its tokenizer writes it, without sampling; surprisal: nats per token of that answer."""
        asked: list[Problem] = problems(self.task.problem, HELD_OUT, range(self.task.evaluated))
        right, spent = 0.0, 0.0
        for some in (asked[i : i + 32] for i in range(0, len(asked), 32)):
            joined, real, own = self._written(some)
            batch = decisions(joined, real, own)
            found = packing.log_probs(
                self.speaker.model, batch.input_ids, batch.actions, batch.attention_mask, None, batch.action_mask
            )
            right += float(found.sum(1).exp().sum())
            spent -= float((found.sum(1) / batch.action_mask.sum(1)).sum())
        return {"answer_error": 1 - right / len(asked), "surprisal": spent / len(asked)}

    def _written(self, asked: list[Problem]) -> tuple[Tensor, Tensor, Tensor]:
        """Prompts with their right answers and a new line; where they are real, and where the answers are. [B, T]"""
        encode, end = self.speaker.tokenizer.encode, self.speaker.ends[0]
        rows = [(encode(each.prompt), [*encode(f" {each.answer}"), end]) for each in asked]
        width = max(len(prompt) + len(answer) for prompt, answer in rows)
        blank = [width - len(prompt) - len(answer) for prompt, answer in rows]
        each = list(zip(blank, rows, strict=True))
        joined = [[end] * empty + prompt + answer for empty, (prompt, answer) in each]
        real = [[0] * empty + [1] * (width - empty) for empty, _ in each]
        own = [[0] * (width - len(answer)) + [1] * len(answer) for _, (_, answer) in each]
        ids, mask, answers = (torch.tensor(table, device=self.device) for table in (joined, real, own))
        return ids, mask, answers

    def state(self) -> dict[str, Any]:
        return {
            "model": self.speaker.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "gate": None if self.gate is None else self.gate.state_dict(),
            "exact": None if self.exact is None else self.exact.state_dict(),
            "screen": self.screen.state(),
            "square": self.square,
            "found": (self.found, self.worthy),
        }

    def load(self, state: dict[str, Any]) -> None:
        self.speaker.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.gate is not None and self.exact is not None:
            self.gate.load_state_dict(state["gate"])
            self.exact.load_state_dict(state["exact"])
        self.screen.load(state["screen"])
        self.square = state["square"]
        self.found, self.worthy = state["found"]


class LanguageTraining:
    """A run of a language task: its seeds share nothing but the clock."""

    def __init__(self, cell: Cell, seeds: list[int], device: torch.device | str = "cpu") -> None:
        self.cell, self.seeds, self.step = cell, list(seeds), 0
        self.streams = Streams(self.seeds, device)
        self.ledger = Ledger(len(self.seeds), device)
        self.due = frozenset(eval_steps(cell.steps, cell.evals))
        self.training, self.alike = Mean(len(self.seeds), device), Mean(len(self.seeds), device)
        self.held = [0.0 for _ in self.seeds]
        self.price = [math.nan for _ in self.seeds]
        self.students = [Student(cell, seed, device) for seed in self.seeds]

    def advance(self) -> None:
        """One step of every seed."""
        if self.step in self.due:
            self.training.clear()
            self.alike.clear()
            for student in self.students:
                student.worthy = student.found = 0
        chances = self.streams.below(2**31 - 1, "answers", self.step).tolist()
        errors, none = [], []
        for i, (student, chance) in enumerate(zip(self.students, chances, strict=True)):
            with self.ledger.phase("rollout"):
                batch, rewards = student.answers(self.step, chance)
            advantages = student.advantages(rewards)
            place = torch.zeros(len(self.seeds), dtype=torch.float64)
            place[i] = 1
            self.ledger.add(forward=place * student.task.batch)
            held, self.price[i] = student.update(batch, advantages, self.ledger, place)
            self.held[i] = max(self.held[i], held)
            errors.append(1 - float(rewards.mean()))
            none.append(float((advantages == 0).double().mean()))
        self.training.add(torch.tensor(errors, dtype=torch.float64))
        self.alike.add(torch.tensor(none, dtype=torch.float64))
        self.step += 1

    def evaluate(self) -> list[dict[str, Any]]:
        """A row per seed: the error, costs, the share of answers without advantage, and what a graph held at most."""
        errors, alike, costs = self.training.value(), self.alike.value(), self.ledger.totals()
        rows = []
        for i, (seed, student) in enumerate(zip(self.seeds, self.students, strict=True)):
            row: dict[str, Any] = {"step": self.step, "seed": seed, **student.examine()}
            row |= {"train_error": float(errors[i]), "zero_advantage": float(alike[i]), "graph_mib": self.held[i]}
            if self.cell.gate is not None:
                row |= {
                    "price": self.price[i],
                    "recall": student.found / student.worthy if student.worthy else math.nan,
                }
            rows.append({name: number(value) for name, value in (row | _at(costs, i)).items()})
        return rows

    def diverged(self) -> dict[int, int]:
        return {}

    def close(self) -> None:
        return None

    def state(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "students": [student.state() for student in self.students],
            "ledger": self.ledger.state(),
            "training": self.training.state(),
            "alike": self.alike.state(),
            "held": self.held,
            "price": self.price,
        }

    def load(self, state: dict[str, Any]) -> None:
        self.step = state["step"]
        for student, own in zip(self.students, state["students"], strict=True):
            student.load(own)
        self.ledger.load(state["ledger"])
        self.training.load(state["training"])
        self.alike.load(state["alike"])
        self.held, self.price = list(state["held"]), list(state["price"])


@contextmanager
def graph_bytes() -> Iterator[dict[int, int]]:
    """{storage: bytes} of what autograd keeps for the backward pass, the weights aside: the memory that a row in a
    graph costs, whatever the device."""
    seen: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        if not tensor.is_leaf or not tensor.requires_grad:
            seen[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        yield seen


def _at(columns: dict[str, Tensor], i: int) -> dict[str, float]:
    return {name: float(column[i]) for name, column in columns.items()}
