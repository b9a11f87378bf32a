"""The gate around Hugging Face models, built from a config: nothing is downloaded."""

import copy

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from docs.examples.transformers_reversal import train
from kondo import KondoGate, KondoGateConfig, KondoTrainer, packing
from kondo.integrations.transformers import decisions, rollout, truncated

PAD, END, V = 0, 1, 17


def gpt2():
    shape = {"vocab_size": V, "n_positions": 32, "n_embd": 16, "n_layer": 3, "n_head": 2}
    still = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return GPT2LMHeadModel(GPT2Config(**shape, **still, bos_token_id=END, eos_token_id=END, pad_token_id=PAD))


def llama():
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2}
    ends = {"bos_token_id": END, "eos_token_id": END, "pad_token_id": PAD}
    return LlamaForCausalLM(
        LlamaConfig(vocab_size=V, num_key_value_heads=1, max_position_embeddings=32, **shape, **ends)
    )


@pytest.fixture(params=[gpt2, llama])
def model(request):
    return request.param()


def batch(side, rows=12, width=11):
    """Rows of 3 to 11 tokens, padded on one side, whose first two are a prompt; and advantages."""
    lengths = torch.arange(rows) % (width - 2) + 3
    places = torch.arange(width).expand(rows, -1)
    place = places if side == "right" else places - (width - lengths).unsqueeze(-1)
    real = (place >= 0) & (place < lengths.unsqueeze(-1))
    ids = torch.randint(2, V, (rows, width)).where(real, PAD)
    return decisions(ids, real.long(), (real & (place >= 2)).long()), torch.randn(rows)


def full_log_probs(model, data):
    """Every row in the graph at its full width, with the positions that generation gives them."""
    positions = (data.attention_mask.cumsum(1) - 1).clamp(min=0)
    logits = model(data.input_ids, attention_mask=data.attention_mask, position_ids=positions).logits
    return logits.log_softmax(-1).gather(-1, data.actions.unsqueeze(-1)).squeeze(-1)


def gradients(model):
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def still(model):
    return torch.optim.SGD(model.parameters(), lr=0.0)


@pytest.mark.parametrize("unit", ["sequence", "token"])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("micro_tokens", [None, 16])
def test_packed_survivors_have_the_gradient_of_the_masked_loss_over_the_whole_batch(model, side, unit, micro_tokens):
    data, advantages = batch(side)
    gate = KondoGate(KondoGateConfig(gate_rate=0.25, unit=unit))
    trainer = KondoTrainer(model, gate=gate, micro_tokens=micro_tokens, optimizer=still(model))
    stats = trainer.step(**data.inputs(), advantages=advantages)
    ours = gradients(model)

    model.zero_grad()
    log_probs = full_log_probs(model, data)
    decided = data.action_mask.bool()
    chi = -advantages.unsqueeze(-1) * log_probs.detach()
    if unit == "sequence":
        chi = (chi * decided).sum(1) / decided.sum(1)
        keep = torch.zeros(len(chi), dtype=torch.bool).index_fill(0, chi.topk(3).indices, True).unsqueeze(-1) & decided
    else:
        count = int(0.25 * decided.sum())
        best = chi.masked_fill(~decided, -torch.inf).flatten().topk(count).indices
        keep = torch.zeros(chi.numel(), dtype=torch.bool).index_fill(0, best, True).view_as(chi)
    loss = -(advantages.unsqueeze(-1) * log_probs)[keep].sum() / decided.sum()
    loss.backward()
    assert stats["loss"] == pytest.approx(loss.item(), abs=1e-6)
    torch.testing.assert_close(ours, gradients(model), atol=1e-6, rtol=1e-4)


def test_a_pack_holds_no_more_than_the_tokens_up_to_each_rows_last_kept_decision(model):
    data, advantages = batch("left")
    seen = []
    model.register_forward_pre_hook(lambda *call: seen.append(call[2]["input_ids"].shape), with_kwargs=True)
    log_probs = packing.log_probs(model, data.input_ids, data.actions, data.attention_mask)
    seen.clear()
    gate = KondoGate(KondoGateConfig(gate_rate=None, price=0.0))
    trainer = KondoTrainer(model, gate=gate, micro_tokens=1, optimizer=still(model))
    stats = trainer.step(**data.inputs() | {"log_probs": log_probs}, advantages=advantages)
    lengths = data.attention_mask.sum(1)[advantages > 0]
    assert seen == [(1, length) for length in sorted(lengths.tolist(), reverse=True)]
    assert (stats["backward_rows"], stats["backward_tokens"]) == (len(lengths), lengths.sum())


def test_screen_decides_as_the_exact_log_probs_do(model):
    data, advantages = batch("left")
    gate = KondoGate(KondoGateConfig(gate_rate=0.25))
    screened = gate.screen(
        model, data.input_ids, data.actions, advantages, data.attention_mask, action_mask=data.action_mask
    )
    exact = full_log_probs(model.eval(), data).detach()
    torch.testing.assert_close(screened.action_log_probs * data.attention_mask, exact * data.attention_mask)
    assert torch.equal(screened.keep, gate.decide(exact, advantages, data.action_mask)[0].keep)


def test_the_rollouts_own_log_probs_are_those_of_a_screening_pass(model):
    prompts = torch.randint(2, V, (20, 5))
    mask = torch.ones_like(prompts)
    mask[::3, :2] = 0
    data = rollout(model, prompts, mask, max_new_tokens=9)
    assert data.log_probs is not None
    screened = packing.log_probs(model, data.input_ids, data.actions, data.attention_mask)
    torch.testing.assert_close(screened * data.action_mask, data.log_probs)
    answers = data.answers()
    assert all(END not in answer[:-1] for answer in answers)
    early = torch.tensor([len(answer) < 8 for answer in answers])
    assert early.any()
    assert not data.attention_mask[early, -1].any()
    assert all(answer[-1] == END for answer in answers if len(answer) < 9)


def test_accumulated_steps_move_as_one_step_on_all_of_their_rows(model):
    data, advantages = batch("right")
    data.action_mask = torch.zeros_like(data.action_mask).index_fill(1, torch.tensor([1]), 1)  # one decision each
    twin = copy.deepcopy(model)
    whole = KondoTrainer(twin, price=0.0, lr=0.1)
    whole.step(**data.inputs(), advantages=advantages)
    parts = KondoTrainer(model, price=0.0, lr=0.1, accumulate=3)
    before = [p.clone() for p in model.parameters()]
    for k in range(3):
        moved = not all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
        assert not moved
        some = slice(4 * k, 4 * k + 4)
        inputs = {name: value[some] for name, value in data.inputs().items() if value is not None}
        parts.step(**inputs, advantages=advantages[some])
    torch.testing.assert_close(gradients(model), gradients(twin), atol=1e-6, rtol=1e-4)


def test_gradient_checkpointing_changes_no_gradient(model):
    data, advantages = batch("left")
    trainer = KondoTrainer(model, gate_rate=0.25, optimizer=still(model))
    trainer.step(**data.inputs(), advantages=advantages)
    plain = gradients(model)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    calls = []
    layer = (model.transformer.h if hasattr(model, "transformer") else model.model.layers)[0]
    layer.register_forward_pre_hook(lambda *_: calls.append(torch.is_grad_enabled()))
    trainer.step(**data.inputs(), advantages=advantages)
    torch.testing.assert_close(gradients(model), plain)
    assert calls.count(True) == 2  # once forward, once more in the backward pass


def test_mixed_precision_computes_in_bfloat16_and_keeps_the_loss_in_32_bits(model):
    data, advantages = batch("left")
    kinds = set()
    head = model.get_output_embeddings()
    head.register_forward_hook(lambda module, inputs, output: kinds.add(output.dtype))
    exact = KondoTrainer(copy.deepcopy(model), gate_rate=0.25, optimizer=still(model))
    mixed = KondoTrainer(model, gate_rate=0.25, optimizer=still(model), autocast=torch.bfloat16)
    kinds.clear()
    stats = mixed.step(**data.inputs(), advantages=advantages)
    assert kinds == {torch.bfloat16}
    assert all(p.grad.dtype == torch.float32 for p in model.parameters())
    # bfloat16 has 8 bits: two to three digits
    assert stats["loss"] == pytest.approx(exact.step(**data.inputs(), advantages=advantages)["loss"], rel=0.02)
    with pytest.raises(ValueError, match="bfloat16"):
        KondoTrainer(model, autocast=torch.float16)


def test_a_truncated_screen_shares_the_first_layers_and_follows_their_training(model):
    data, advantages = batch("left")
    screen = truncated(model, 2)
    assert screen.config.num_hidden_layers == 2
    own = dict(model.named_parameters())
    assert all(own[name] is value for name, value in screen.named_parameters())
    trainer = KondoTrainer(model, gate_rate=0.25, lr=0.1, screen=screen)
    arguments = data.input_ids, data.actions, data.attention_mask
    before = packing.log_probs(screen, *arguments)
    decided = trainer.gate.decide(before, advantages, data.action_mask)[0]
    assert trainer.step(**data.inputs(), advantages=advantages)["price"] == pytest.approx(decided.price.item())
    assert not torch.allclose(before, packing.log_probs(screen, *arguments))
    whole = truncated(model, 3)
    torch.testing.assert_close(packing.log_probs(whole, *arguments), packing.log_probs(model, *arguments))
    with pytest.raises(ValueError, match="the model has 3"):
        truncated(model, 4)


def test_the_example_learns_to_write_backwards_from_a_tenth_of_the_rows(capsys):
    """From a reward of about ¼, that of guessing among four tokens."""
    rewards = train(120, 0.1)
    assert sum(rewards[:5]) / 5 < 0.45
    assert sum(rewards[-10:]) / 10 > 0.65
    assert "6 of 64 rows" in capsys.readouterr().out
