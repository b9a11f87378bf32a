"""The gate around Hugging Face models, built from a config: nothing is downloaded."""

import copy

import peft
import pytest
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
)

from examples.transformers_reversal import train
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


def calls_of(model):
    """What each pass of a model is asked and how wide its logits are."""
    seen = []

    def note(module, args, options, output):
        kept = options.get("logits_to_keep")
        seen.append((options.get("use_cache"), None if kept is None else len(kept), output.logits.shape[1]))

    model.register_forward_hook(note, with_kwargs=True)
    return seen


def test_logits_are_computed_only_where_decisions_are_and_no_cache_is_kept(model):
    data, advantages = batch("left")
    seen = calls_of(model)
    last = torch.zeros_like(data.action_mask)
    last[:, -2:] = 1
    last *= data.action_mask
    trainer = KondoTrainer(model, price=0.0, micro_tokens=1, optimizer=still(model))
    trainer.step(**data.inputs() | {"action_mask": last}, advantages=advantages)
    assert seen
    assert all(cached is False and width <= 2 for cached, _, width in seen)
    assert any(kept is not None for _, kept, _ in seen)


def test_a_model_whose_forward_knows_no_logits_to_keep_has_the_same_gradient(model):
    data, advantages = batch("left")

    class Plain(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model

        def forward(self, input_ids, attention_mask=None):
            return self.inner(input_ids, attention_mask=attention_mask)

    KondoTrainer(model, gate_rate=0.25, optimizer=still(model)).step(**data.inputs(), advantages=advantages)
    ours = gradients(model)
    plain = Plain()
    KondoTrainer(plain, gate_rate=0.25, optimizer=still(plain)).step(**data.inputs(), advantages=advantages)
    torch.testing.assert_close(ours, gradients(model), atol=1e-6, rtol=1e-4)


def mamba():
    shape = {"vocab_size": V, "hidden_size": 16, "state_size": 4, "num_hidden_layers": 3}
    return MambaForCausalLM(MambaConfig(**shape, bos_token_id=END, eos_token_id=END, pad_token_id=PAD))


def test_a_truncated_mamba_shares_its_first_layers():
    model = mamba()
    data, _ = batch("right")
    screen = truncated(model, 1)
    own = dict(model.named_parameters())
    assert all(own[name] is value for name, value in screen.named_parameters())
    assert len(model.backbone.layers) == 3
    expected = packing.log_probs(screen, data.input_ids, data.actions, data.attention_mask)
    model.backbone.layers = model.backbone.layers[:1]
    model.config.num_hidden_layers = 1
    torch.testing.assert_close(packing.log_probs(model, data.input_ids, data.actions, data.attention_mask), expected)
    model.backbone.layers = torch.nn.ModuleList()
    with pytest.raises(ValueError, match="1 layers in one list; found: none"):
        truncated(model, 1)


def test_adapters_are_trained_sampled_from_and_truncated_and_nothing_else_moves(model):
    torch.manual_seed(0)
    names = ["c_attn"] if hasattr(model, "transformer") else ["q_proj", "v_proj"]
    adapted = peft.get_peft_model(
        model,
        peft.LoraConfig(
            r=2, target_modules=names, task_type="CAUSAL_LM", init_lora_weights=False, fan_in_fan_out="c_attn" in names
        ),
    )
    prompts = torch.randint(2, V, (20, 5))
    data = rollout(adapted, prompts, torch.ones_like(prompts), max_new_tokens=6)
    advantages = torch.randn(20)
    screened = packing.log_probs(adapted, data.input_ids, data.actions, data.attention_mask)
    torch.testing.assert_close(screened * data.action_mask, data.log_probs)
    before = {name: p.clone() for name, p in adapted.named_parameters()}
    trainer = KondoTrainer(adapted, gate_rate=0.25, lr=0.1, screen=truncated(adapted, 2))
    seen = calls_of(model)
    trainer.step(**data.inputs() | {"log_probs": None}, advantages=advantages)
    assert [(cached, kept is None) for cached, kept, _ in seen] == [(False, False)]
    moved = {name for name, p in adapted.named_parameters() if not torch.equal(p, before[name])}
    assert moved == {name for name in before if "lora" in name}
    whole = packing.log_probs(truncated(adapted, 3), data.input_ids, data.actions, data.attention_mask)
    torch.testing.assert_close(whole, packing.log_probs(adapted, data.input_ids, data.actions, data.attention_mask))


def test_a_mixture_of_experts_has_the_gradient_of_the_masked_loss_and_its_router_loss_only_if_asked():
    shape = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2, "num_key_value_heads": 1}
    ends = {"bos_token_id": END, "eos_token_id": END, "pad_token_id": PAD}
    model = MixtralForCausalLM(MixtralConfig(vocab_size=V, max_position_embeddings=32, **shape, **experts, **ends))
    data, advantages = batch("right")
    KondoTrainer(model, price=0.0, optimizer=still(model)).step(**data.inputs(), advantages=advantages)
    ours = gradients(model)
    model.zero_grad()
    keep = (advantages > 0).unsqueeze(-1) * data.action_mask
    (-(keep * advantages.unsqueeze(-1) * full_log_probs(model, data)).sum() / data.action_mask.sum()).backward()
    torch.testing.assert_close(ours, gradients(model), atol=1e-6, rtol=1e-4)
    model.config.output_router_logits = True
    with pytest.raises(ValueError, match="router's loss"):
        KondoTrainer(model)

    def router(log_probs, output, mask, pack):
        return output.aux_loss * mask.sum()

    stats = KondoTrainer(model, price=0.0, extra_loss=router).step(**data.inputs(), advantages=advantages)
    assert stats["extra_loss"] > 0


def test_the_example_learns_to_write_backwards_from_a_tenth_of_the_rows(capsys):
    """From a reward of about ¼, that of guessing among four tokens."""
    rewards = train(120, 0.1)
    assert sum(rewards[:5]) / 5 < 0.45
    assert sum(rewards[-10:]) / 10 > 0.65
    assert "6 of 64 rows" in capsys.readouterr().out
