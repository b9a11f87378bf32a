"""Tasks: where contexts come from, what an answer is worth, and how good a policy really is."""

from kondo.lab.tasks import bandit, language, mnist, reversal
from kondo.lab.tasks.base import TASKS, Contexts, FiniteTask, Problem, Task, task

__all__ = ["TASKS", "Contexts", "FiniteTask", "Problem", "Task", "bandit", "language", "mnist", "reversal", "task"]
