"""A language model trained by policy gradient on problems whose answers can be checked."""

COLUMNS = {
    "answer_error": "1 − π(the right answer), over problems that are not trained on",
    "surprisal": "nats per token of the right answer",
    "zero_advantage": "share of answers without advantage since the last evaluation",
    "graph_mib": "the most that autograd kept for a backward pass so far, weights aside",
    "recall": "of what exact delight would have kept since the last evaluation, the share that was; with a gate",
}
"""What a run of `task=language` logs beside what every run does."""
