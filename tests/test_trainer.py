from types import SimpleNamespace

import pytest
import torch
from torch import nn

from kondo import KondoTrainer
from kondo.gate import GateSettings, KondoGate, KondoGateConfig

B, T, V = 16, 6, 11


class Model(nn.Module):
    """A small causal model with dropout, which counts the rows that gradients flow back to."""

    def __init__(self, dropout: float = 0.0):
        super().__init__()
        self.embed, self.drop, self.head = nn.Embedding(V, 16), nn.Dropout(dropout), nn.Linear(16, V)
        self.rows_in_backward = 0
        self.training_calls: list[bool] = []

    def forward(self, input_ids, attention_mask=None):
        self.training_calls.append(self.training)
        hidden = self.embed(input_ids).cumsum(1)
        if hidden.requires_grad:
            hidden.register_hook(lambda gradient: self._count(len(gradient)))
        return SimpleNamespace(logits=self.head(self.drop(hidden)))

    def _count(self, rows: int) -> None:
        self.rows_in_backward += rows


@pytest.fixture
def batch():
    mask = torch.ones(B, T)
    mask[::3, 4:] = 0
    return torch.randint(V, (B, T)), torch.randint(V, (B, T)), torch.randn(B), mask


def gradients(model):
    return [p.grad.clone() for p in model.parameters()]


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize(
    "settings", [{"gate_rate": 0.25}, {"price": 0.0}, {"gate_rate": 1.0}, {"gate_rate": 0.5, "hard": False}]
)
def test_step_has_the_gradient_of_the_masked_full_batch_loss(batch, settings, masked):
    ids, actions, advantages, mask = batch
    mask = mask if masked else None
    model = Model()
    trainer = KondoTrainer(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.0), **settings)
    stats = trainer.step(ids, actions, advantages, mask)
    ours = gradients(model)
    model.zero_grad()
    full = trainer.gate(model(ids).logits, actions, advantages, mask)
    full.gated_policy_loss.backward()
    for gathered, expected in zip(ours, gradients(model), strict=True):
        torch.testing.assert_close(gathered, expected, atol=1e-6, rtol=1e-5)
    assert stats["loss"] == pytest.approx(full.gated_policy_loss.item(), abs=1e-6)


def test_a_skipped_row_is_not_in_the_graph(batch):
    ids, actions, advantages, mask = batch
    model = Model()
    stats = KondoTrainer(model, gate_rate=0.25).step(ids, actions, advantages, mask)
    assert model.rows_in_backward == stats["backward_rows"] == 4


def test_screen_is_free_and_decides_the_same_when_log_probs_are_given(batch):
    ids, actions, advantages, mask = batch
    model = Model()
    log_probs = model(ids).logits.log_softmax(-1).gather(-1, actions[..., None])[..., 0].detach()
    trainer = KondoTrainer(model, gate_rate=0.25, optimizer=torch.optim.SGD(model.parameters(), lr=0.0))
    model.training_calls.clear()
    given = trainer.step(ids, actions, advantages, mask, log_probs=log_probs)
    assert len(model.training_calls) == 1  # the survivors' own pass alone
    assert given == pytest.approx(trainer.step(ids, actions, advantages, mask))


def test_no_survivor_means_no_backward_and_adam_does_not_move(batch):
    ids, actions, advantages, mask = batch
    model = Model()
    trainer = KondoTrainer(model, gate_rate=0.5, lr=0.1)
    trainer.step(ids, actions, advantages, mask)  # Adam has momentum now
    before = [p.clone() for p in model.parameters()]
    stats = trainer.step(ids, actions, torch.zeros(B), mask)
    assert stats["backward_rows"] == 0
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_screens_in_evaluation_mode_and_updates_in_training_mode(batch):
    ids, actions, advantages, mask = batch
    model = Model(dropout=0.5)
    KondoTrainer(model, gate_rate=0.25).step(ids, actions, advantages, mask)
    assert model.training_calls == [False, True]


def test_any_setting_of_the_gate_is_one_of_the_trainers():
    trainer = KondoTrainer(Model(), 0.2, unit="token", history=30, warmup=4, priority="surprisal")
    assert trainer.gate.settings == GateSettings(rate=0.2, unit="token", history=30, warmup=4, priority="surprisal")
    with pytest.raises(ValueError, match="unit: the gate that is given has settings of its own"):
        KondoTrainer(Model(), gate=KondoGate(), unit="token")
    with pytest.raises(TypeError, match="units"):
        KondoTrainer(Model(), units="token")


def test_the_loss_is_normalised_by_the_full_batch_not_by_what_was_kept():
    logits, actions = torch.zeros(10, V), torch.zeros(10, dtype=torch.long)
    advantages = torch.arange(1.0, 11.0)
    output = KondoGate(KondoGateConfig(gate_rate=0.1))(logits, actions, advantages)
    assert output.gated_policy_loss.item() == pytest.approx(10 * torch.tensor(V).log().item() / 10)


def test_models_with_one_decision_per_row_and_no_mask_argument_are_trained_too():
    class Classifier(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(3, V)

        def forward(self, input_ids):
            return SimpleNamespace(logits=self.head(input_ids))

    model, inputs = Classifier(), torch.randn(8, 3)
    actions, advantages = torch.randint(V, (8,)), torch.randn(8)
    trainer = KondoTrainer(model, gate_rate=0.5, optimizer=torch.optim.SGD(model.parameters(), lr=0.0))
    assert trainer.step(inputs, actions, advantages)["backward_rows"] == 4
    ours = gradients(model)
    model.zero_grad()
    trainer.gate(model(inputs).logits, actions, advantages).gated_policy_loss.backward()
    torch.testing.assert_close(ours, gradients(model))
