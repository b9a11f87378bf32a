"""What a training loop asks of `KondoTrainer` beside its gradient: to accumulate, resume, clip, warn and refuse."""

import copy
import warnings
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from kondo import KondoGate, KondoTrainer, packing
from tests.test_trainer import B, Model, T, V, gradients


def some(seed, rows=B, real=T):
    made = torch.Generator().manual_seed(seed)
    ids, actions = (torch.randint(V, (rows, T), generator=made) for _ in range(2))
    mask = torch.ones(rows, T, dtype=torch.long)
    mask[:, real:] = 0
    return ids, actions, torch.randn(rows, generator=made), mask


def sgd(model, lr=0.0):
    return torch.optim.SGD(model.parameters(), lr=lr)


def same(model, twin):
    return all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))


def test_accumulated_batches_of_different_sizes_move_as_their_joined_rows_do():
    model = Model()
    twin = copy.deepcopy(model)
    parts = [some(1, 4, 6), some(2, 9, 3), some(3, 0), some(4, 2, 1)]
    trainer = KondoTrainer(model, price=0.0, lr=0.1, accumulate=4, max_grad_norm=0.5)
    stats = [trainer.step(*part) for part in parts[:2]]
    with pytest.warns(UserWarning, match="0 rows without a decision"):
        stats.append(trainer.step(*parts[2]))
    stats.append(trainer.step(*parts[3]))
    joined = [torch.cat(tensors) for tensors in zip(*parts, strict=True)]
    whole = KondoTrainer(twin, price=0.0, lr=0.1, max_grad_norm=0.5).step(*joined)
    assert stats[-1]["grad_norm"] == pytest.approx(whole["grad_norm"])
    assert not any("grad_norm" in each for each in stats[:3])
    torch.testing.assert_close(gradients(model), gradients(twin), atol=1e-7, rtol=1e-5)
    torch.testing.assert_close(list(model.parameters()), list(twin.parameters()), atol=1e-6, rtol=1e-5)


def test_an_unfinished_accumulation_is_trained_by_finish_and_only_once():
    model = Model()
    twin = copy.deepcopy(model)
    trainer = KondoTrainer(model, price=0.0, lr=0.1, accumulate=3)
    trainer.step(*some(1))
    assert same(model, twin)
    trainer.finish()
    assert not same(model, twin)
    KondoTrainer(twin, price=0.0, lr=0.1).step(*some(1))
    assert same(model, twin)
    trainer.finish()
    trainer.update()
    assert same(model, twin)


def loop(model):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)
    settings = {"history": 20, "warmup": 10, "max_consecutive_drops": 1}
    return KondoTrainer(model, 0.1, optimizer=optimizer, scheduler=scheduler, accumulate=2, **settings)


@pytest.mark.parametrize("cut", [2, 3])
def test_training_goes_on_bit_for_bit_after_a_resume_also_within_an_accumulation(cut, tmp_path):
    model = Model()
    first = copy.deepcopy(model)
    whole = loop(model)
    seen = [whole.step(*some(seed)) for seed in range(6)]
    before = loop(first)
    for seed in range(cut):
        before.step(*some(seed))
    torch.save([first.state_dict(), before.state_dict()], tmp_path / "state.pt")
    weights, state = torch.load(tmp_path / "state.pt")
    again = Model()
    again.load_state_dict(weights)
    after = loop(again)
    after.load_state_dict(state)
    assert [after.step(*some(seed)) for seed in range(cut, 6)] == seen[cut:]
    assert same(model, again)
    assert after.scheduler.get_last_lr() == whole.scheduler.get_last_lr() != [0.1]


def test_a_saved_scheduler_without_a_scheduler_to_take_it_is_refused():
    with pytest.raises(ValueError, match="scheduler"):
        KondoTrainer(Model()).load_state_dict(loop(Model()).state_dict())


def test_gradients_are_clipped_to_a_norm_and_reported():
    model = Model()
    exact = KondoTrainer(model, price=0.0, optimizer=sgd(model))
    exact.step(*some(1))
    plain = gradients(model)
    norm = torch.cat([g.flatten() for g in plain]).norm().item()
    for most in (norm / 2, norm * 2):
        stats = KondoTrainer(model, price=0.0, optimizer=sgd(model), max_grad_norm=most).step(*some(1))
        assert stats["grad_norm"] == pytest.approx(norm)
        scale = min(1.0, most / norm)
        torch.testing.assert_close(gradients(model), [scale * g for g in plain])
    with pytest.raises(ValueError, match="max_grad_norm must be > 0; got 0"):
        KondoTrainer(model, max_grad_norm=0)


def test_the_scheduler_steps_with_the_optimizer_and_not_without_it():
    model = Model()
    optimizer = sgd(model, 1.0)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    trainer = KondoTrainer(model, price=0.0, optimizer=optimizer, scheduler=scheduler, accumulate=2)
    rates = []
    for seed in range(6):
        ids, actions, advantages, mask = some(seed)
        trainer.step(ids, actions, advantages * (seed not in (2, 3)), mask)  # the second pair has nothing to teach
        rates.append(optimizer.param_groups[0]["lr"])
    assert rates == [1.0, 0.5, 0.5, 0.5, 0.5, 0.25]


def test_an_extra_loss_is_paid_on_what_is_kept_and_divided_as_the_loss_is():
    """A KL term to reference log-probabilities, of the kind (r − 1) − log r, on the decisions that are kept."""
    ids, actions, advantages, mask = some(1, real=5)
    answer = mask.clone()
    answer[:, :2] = 0
    answer[::2, 3:] = 0  # rows of a pack decide at different places
    reference = -torch.rand(B, T)

    def term(log_probs, mask, reference):
        ratio = reference - log_probs
        return (0.3 * (ratio.exp() - 1 - ratio) * mask).sum()

    def extra(log_probs, output, mask, pack):
        ragged.append(not mask.all())
        assert output.logits.shape[:2] == log_probs.shape == mask.shape
        return term(log_probs, mask, pack.decisions(reference))

    model, ragged = Model(), []
    trainer = KondoTrainer(model, 0.5, optimizer=sgd(model), extra_loss=extra, micro_tokens=15)
    stats = trainer.step(ids, actions, advantages, mask, action_mask=answer)
    assert len(ragged) > 1
    assert any(ragged)
    ours = gradients(model)
    model.zero_grad()
    log_probs = packing.chosen_log_probs(model(ids).logits, actions)
    keep = trainer.gate.decide(log_probs, advantages, answer)[1]
    loss = -(keep * advantages.unsqueeze(-1) * log_probs).sum() / answer.sum()
    paid = term(log_probs, keep, reference) / answer.sum()
    (loss + paid).backward()
    assert (stats["loss"], stats["extra_loss"]) == pytest.approx((loss.item(), paid.item()))
    torch.testing.assert_close(ours, gradients(model), atol=1e-6, rtol=1e-5)


def test_a_loop_of_ones_own_may_screen_run_its_own_backward_and_take_the_step_itself():
    model, calls = Model(), []
    twin = copy.deepcopy(model)
    KondoTrainer(twin, 0.25, optimizer=sgd(twin, 0.5), max_grad_norm=0.1).step(*some(1))

    def backward(loss):
        calls.append(loss.item())
        loss.backward()

    optimizer = sgd(model, 0.5)
    trainer = KondoTrainer(model, 0.25, optimizer=optimizer, max_grad_norm=0.1, backward=backward)
    decision = trainer.screen(*some(1))
    assert decision.keep.sum() == 4
    assert not calls
    stats = trainer.backward(decision)
    assert calls == pytest.approx([stats["loss"] * B * T])
    trainer.collect()
    torch.testing.assert_close(gradients(model), gradients(twin))
    optimizer.step()
    assert same(model, twin)


def test_a_rate_of_less_than_one_row_is_said_once_and_not_with_a_history():
    trainer = KondoTrainer(Model(), gate_rate=0.03)
    with pytest.warns(UserWarning, match=r"0.03 of 8 is less than one, and the gate keeps one, 12.5%; with history="):
        trainer.step(*some(1, 8))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer.step(*some(2, 8))
        KondoTrainer(Model(), gate_rate=0.03, history=100).step(*some(1, 8))
        KondoTrainer(Model(), gate_rate=0.125).step(*some(1, 8))
        KondoTrainer(Model(), gate_rate=0.03, unit="token").step(*some(1, 8))  # one of 48 tokens


@pytest.mark.parametrize("what", ["log_probs", "advantages"])
def test_rows_with_nan_are_counted_and_said_once(what):
    ids, actions, advantages, mask = some(1, real=4)
    log_probs = -torch.rand(B, T)
    log_probs[:, 5] = torch.nan  # on padding: nothing to report
    if what == "log_probs":
        log_probs[[2, 7], 1] = torch.nan
    else:
        advantages[[2, 7]] = torch.nan
    trainer = KondoTrainer(Model(), price=0.0)
    with pytest.warns(UserWarning, match="2 rows have log-probabilities or advantages that are NaN"):
        stats = trainer.step(ids, actions, advantages, mask, log_probs=log_probs)
    assert stats["nonfinite"] == 2
    assert torch.tensor(stats["mean_delight"]).isfinite()
    assert stats["backward_rows"] == int((advantages > 0).sum()) - (
        int((advantages[[2, 7]] > 0).sum()) if what == "log_probs" else 0
    )
    trainer.step(ids, actions, advantages, mask, log_probs=log_probs)


@pytest.mark.parametrize(("unit", "counted"), [("sequence", 2), ("token", 3)])
def test_what_is_infinite_is_counted_by_the_units_of_the_gate(unit, counted):
    ids, actions, advantages, _ = some(1)
    log_probs = -torch.rand(B, T)
    log_probs[2, :2] = -torch.inf
    log_probs[7, 1] = torch.nan
    trainer = KondoTrainer(Model(), price=-5.0, unit=unit)
    whole = torch.ones(B, T)
    with pytest.warns(UserWarning, match=f"{counted} {'tokens' if unit == 'token' else 'rows'} have log-prob"):
        stats = trainer.step(ids, actions, advantages, whole, log_probs=log_probs)
    assert stats["nonfinite"] == counted
    advantages[3] = torch.inf
    assert trainer.step(ids, actions, advantages, whole, log_probs=-torch.rand(B, T))["nonfinite"] == (
        T if unit == "token" else 1
    )


def test_padding_between_the_tokens_of_a_row_is_said_and_at_its_ends_is_not():
    ids, actions, advantages, mask = some(1, real=4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        KondoTrainer(Model(), price=0.0).step(ids, actions, advantages, mask)
        KondoTrainer(Model(), price=0.0).step(ids, actions, advantages, mask.flip(1))
    mask[3, 1] = 0
    with pytest.warns(UserWarning, match="padding between the tokens"):
        KondoTrainer(Model(), price=0.0).step(ids, actions, advantages, mask)


# In the loop of accelerate, and after what went wrong


def test_the_accumulation_is_the_trainer_s_also_with_accelerate():
    from accelerate import Accelerator

    model = Model()
    twin = copy.deepcopy(model)
    accelerator = Accelerator(cpu=True)
    ours, optimizer = accelerator.prepare(model, sgd(model, 0.5))
    trainer = KondoTrainer(ours, price=0.0, optimizer=optimizer, backward=accelerator.backward, accumulate=2)
    plain = KondoTrainer(twin, price=0.0, optimizer=sgd(twin, 0.5), accumulate=2)
    for seed in range(4):
        with accelerator.accumulate(ours):
            trainer.step(*some(seed))
        plain.step(*some(seed))
    assert same(model, twin)
    accelerator.gradient_accumulation_steps = 2
    with pytest.raises(ValueError, match=r"gradient_accumulation_steps=2 .* accumulate=2"):
        KondoTrainer(ours, optimizer=optimizer, backward=accelerator.backward)


def test_parameters_that_the_optimizer_does_not_hold_have_fresh_gradients_too():
    model = Model()
    trainer = KondoTrainer(model, price=0.0, optimizer=sgd(next(model.children()), 0.0), max_grad_norm=1e9)
    norms = [trainer.step(*some(1))["grad_norm"] for _ in range(3)]
    assert norms == pytest.approx([norms[0]] * 3)


def test_after_an_error_in_a_backward_pass_the_next_step_is_that_of_a_trainer_that_saw_none():
    model = Model()
    twin = copy.deepcopy(model)
    calls = []

    def backward(loss):
        calls.append(loss)
        if len(calls) == 2:
            raise torch.OutOfMemoryError
        loss.backward()

    trainer = KondoTrainer(model, price=0.0, optimizer=sgd(model, 0.5), micro_tokens=2 * T, backward=backward)
    with pytest.raises(torch.OutOfMemoryError):
        trainer.step(*some(1))
    assert trainer.accumulated == 0
    found = trainer.step(*some(2))
    assert found == KondoTrainer(twin, price=0.0, optimizer=sgd(twin, 0.5), micro_tokens=2 * T).step(*some(2))
    assert same(model, twin)


def test_an_extra_loss_gets_the_weights_of_the_gate():
    seen = []

    def extra(log_probs, output, weights, pack):
        seen.append(weights)
        return 0 * log_probs.sum()

    settings = {"floor": 0.5, "reserve_mode": "unbiased"}
    KondoTrainer(Model(), price=0.0, extra_loss=extra, **settings).step(*some(1))
    assert set(torch.cat([each.flatten() for each in seen]).tolist()) == {1.0, 2.0}


def test_a_router_s_loss_that_is_switched_on_later_is_refused_then():
    model = Model()
    trainer = KondoTrainer(model, price=0.0)
    trainer.step(*some(1))
    next(model.children()).config = SimpleNamespace(output_router_logits=True)
    with pytest.raises(ValueError, match="router's loss"):
        trainer.step(*some(2))


def test_settings_that_something_given_has_itself_are_refused():
    model = Model()
    for given, said in (
        ({"gate": KondoGate(), "gate_rate": 0.1}, "gate_rate: the gate that is given"),
        ({"gate": KondoGate(), "temperature": 1.0}, "temperature: the gate that is given"),
        ({"optimizer": sgd(model, 0.1), "lr": 0.1}, r"lr=0.1: the optimizer that is given"),
    ):
        with pytest.raises(ValueError, match=said):
            KondoTrainer(model, **given)


def wrong(**changes):
    ids, actions, advantages, mask = some(1)
    given = {"input_ids": ids, "actions": actions, "advantages": advantages, "attention_mask": mask}
    return given | {name: change(given.get(name)) for name, change in changes.items()}


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        (wrong(actions=lambda x: x.tolist()), TypeError, "actions: expected a tensor, got list"),
        (wrong(advantages=lambda x: None), TypeError, "advantages: expected a tensor, got NoneType"),
        (wrong(actions=lambda x: x.float()), TypeError, "actions: expected whole numbers"),
        (wrong(actions=lambda x: x.index_fill(1, torch.tensor([3]), -100)), ValueError, "-100 where the model decided"),
        (wrong(actions=lambda x: x + V), ValueError, r"highest is \d+, but the model has 11 logits"),
        (wrong(actions=lambda x: x[:, 1:]), ValueError, r"input_ids \(16, 6\): expected \(16, 5\)"),
        (wrong(actions=lambda x: x[None]), ValueError, r"actions \(1, 16, 6\): expected \(B, T\)"),
        (wrong(advantages=lambda x: x[1:]), ValueError, r"advantages \(15,\): expected \(16,\) or \(16, 6\)"),
        (wrong(attention_mask=lambda x: x[:, :4]), ValueError, r"attention_mask \(16, 4\): expected \(16, 6\)"),
        (wrong(log_probs=lambda x: torch.zeros(16)), ValueError, r"log_probs \(16,\): expected \(16, 6\)"),
        (wrong(log_probs=lambda x: torch.full((16, 6), 2.0)), ValueError, "log_probs: 2 is the logarithm of no prob"),
        (wrong(attention_mask=lambda x: x * 0.5), ValueError, "attention_mask: expected 0 or 1, got 0.5"),
        (wrong(input_ids=lambda x: x.float()), TypeError, "input_ids: expected whole numbers, tokens; got torch.float"),
        (
            wrong(
                attention_mask=lambda x: x.index_fill(1, torch.tensor([5]), 0), action_mask=lambda x: torch.ones(B, T)
            ),
            ValueError,
            "action_mask: 1 where attention_mask is 0",
        ),
    ],
)
def test_what_is_no_batch_is_refused_with_what_was_given_and_what_is_expected(given, error, said):
    model = Model()
    twin = copy.deepcopy(model)
    with pytest.raises(error, match=said):
        KondoTrainer(model).step(**given)
    assert same(model, twin)


def test_labels_of_minus_100_where_nothing_was_decided_change_nothing():
    ids, actions, advantages, mask = some(1, real=4)
    answer = mask.clone()
    answer[::2, :2] = 0  # where other rows of the pack decide
    model = Model()
    twin = copy.deepcopy(model)
    labels = actions.masked_fill(answer == 0, -100)
    expected = KondoTrainer(twin, 0.5).step(ids, actions, advantages, mask, action_mask=answer)
    assert KondoTrainer(model, 0.5).step(ids, labels, advantages, mask, action_mask=answer) == expected
    assert same(model, twin)


def test_a_module_in_evaluation_mode_stays_in_it_and_every_mode_comes_back():
    model = Model(dropout=0.5)
    model.drop.eval()
    seen = []
    model.drop.register_forward_pre_hook(lambda module, _: seen.append(module.training))
    trainer = KondoTrainer(model, 0.25)
    trainer.step(*some(1))
    assert model.training_calls == [False, True]
    assert seen == [False, False]
    assert (model.training, model.drop.training, model.head.training) == (True, False, True)
    model.eval()
    trainer.step(*some(1))
    assert model.training_calls[-2:] == [False, True]
    assert not model.training


def test_a_log_softmax_in_chunks_has_the_same_values_and_gradients(monkeypatch):
    logits = torch.randn(7, 3, V, dtype=torch.float64, requires_grad=True)
    actions = torch.randint(V, (7, 3))
    weights = torch.randn(7, 3, dtype=torch.float64)
    sizes = []
    wide = packing._wide
    monkeypatch.setattr(packing, "_wide", lambda x: sizes.append(x.numel()) or wide(x))
    monkeypatch.setattr(packing, "CHUNK", 4 * V)
    ours = packing.chosen_log_probs(logits, actions)
    (own,) = torch.autograd.grad((ours * weights).sum(), logits)
    plain = logits.log_softmax(-1).gather(-1, actions.unsqueeze(-1)).squeeze(-1)
    (expected,) = torch.autograd.grad((plain * weights).sum(), logits)
    torch.testing.assert_close(ours, plain)
    torch.testing.assert_close(own, expected)
    assert max(sizes) == 4 * V


def test_a_model_that_no_gradient_reaches_is_refused():
    model = Model()
    with pytest.raises(ValueError, match="no gradient reaches a parameter"):
        KondoTrainer(model.requires_grad_(False), 0.25).step(*some(1))


def test_a_second_epoch_ranks_by_the_log_probs_that_are_given_or_anew_without_them():
    model = Model()
    ids, actions, advantages, mask = some(1)
    trainer = KondoTrainer(model, 0.25, lr=1.0)
    sampled = packing.log_probs(model, ids, actions, mask)
    first = trainer.step(ids, actions, advantages, mask, log_probs=sampled)
    stale = trainer.step(ids, actions, advantages, mask, log_probs=sampled)
    now = trainer.gate.decide(packing.log_probs(model, ids, actions, mask), advantages, mask)[0]
    fresh = trainer.step(ids, actions, advantages, mask)
    assert (stale["price"], stale["mean_delight"]) == (first["price"], first["mean_delight"])
    assert stale["loss"] != first["loss"]  # log π itself is that of the present weights
    assert fresh["price"] == pytest.approx(now.price.item()) != first["price"]


class Routed(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Model()
        self.config = type("Config", (), {"output_router_logits": True})()

    def forward(self, input_ids, attention_mask=None):
        output = self.inner(input_ids, attention_mask)
        output.aux_loss = output.logits.square().mean()
        return output


def test_a_routers_loss_is_refused_unless_it_is_asked_for():
    with pytest.raises(ValueError, match="router's loss"):
        KondoTrainer(Routed())
    trainer = KondoTrainer(
        Routed(), 0.25, extra_loss=lambda log_probs, output, mask, pack: output.aux_loss * mask.sum()
    )
    assert trainer.step(*some(1))["extra_loss"] > 0
