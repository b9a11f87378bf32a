"""GRPO with DG and the gate, on a Llama of two layers and a tokenizer of a few letters."""

import copy
import os
import socket
import warnings

import pytest
import torch
from torch import multiprocessing
from transformers import HfArgumentParser
from trl import GRPOTrainer

from docs.examples.grpo_reversal import trainer as build
from kondo.gate import GateSettings
from kondo.integrations.trl import KondoGRPOConfig, gather

B, H, T, PAD = 12, 5, 4, 0


@pytest.fixture
def make(tmp_path):
    def made(steps=1, **settings):
        trainer = build(steps, folder=str(tmp_path), **settings)
        trainer.current_gradient_accumulation_steps = 1  # which train() sets
        return trainer

    return made


@pytest.fixture
def inputs():
    """Rows as GRPO has them: prompts padded on the left, completions on the right."""
    lengths = torch.arange(B) % 3 + 1
    completion_mask = (torch.arange(T) < lengths.unsqueeze(-1)).long()
    prompt_mask = (torch.arange(H) >= (torch.arange(B) % 2 + 1).unsqueeze(-1)).long()
    return {
        "prompt_ids": torch.randint(2, 5, (B, H)).where(prompt_mask.bool(), PAD),
        "prompt_mask": prompt_mask,
        "completion_ids": torch.randint(2, 5, (B, T)).where(completion_mask.bool(), PAD),
        "completion_mask": completion_mask,
        "advantages": torch.randn(B),
        "num_items_in_batch": completion_mask.sum(),
    }


def gradients(trainer, loss):
    trainer.model.zero_grad()
    loss.backward()
    return [p.grad.clone() for p in trainer.model.parameters()]


def exact_log_probs(model, inputs):
    ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
    mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
    logits = model(ids, attention_mask=mask).logits[:, H - 1 : -1]
    return logits.log_softmax(-1).gather(-1, inputs["completion_ids"].unsqueeze(-1)).squeeze(-1)


@pytest.mark.parametrize("loss_type", ["grpo", "bnpo", "dr_grpo", "dapo", "sapo", "luspo", "cispo", "vespo"])
def test_kept_rows_have_the_gradient_of_grpos_loss_with_the_others_multiplied_by_zero(make, inputs, loss_type):
    trainer = make(use_kondo_gate=True, kondo_gate_rate=0.25, kondo_gate_history_size=0, loss_type=loss_type)
    model = trainer.model.train()
    mask = inputs["completion_mask"]
    chi = -inputs["advantages"].unsqueeze(-1) * exact_log_probs(model, inputs).detach()
    best = ((chi * mask).sum(1) / mask.sum(1)).topk(3).indices
    keep = torch.zeros(B).index_fill(0, best, 1.0)
    rows = []
    model.register_forward_pre_hook(
        lambda *call: rows.append((torch.is_grad_enabled(), len(call[2]["input_ids"]))), with_kwargs=True
    )
    before = inputs["advantages"].clone()
    ours = gradients(trainer, trainer.compute_loss(model, inputs))
    assert rows == [(False, B), (True, 3)]
    assert torch.equal(inputs["advantages"], before)  # the buffered batch is another iteration's too
    masked = inputs | {"advantages": inputs["advantages"] * keep}
    theirs = gradients(trainer, GRPOTrainer._compute_loss(trainer, model, masked))
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-4)
    assert any(g.abs().max() > 1e-4 for g in ours)


def test_delight_weights_each_token_by_the_sigmoid_of_advantage_times_surprisal(make, inputs):
    trainer = make(use_delight=True, loss_type="dapo")
    model = trainer.model.train()
    ours = gradients(trainer, trainer.compute_loss(model, inputs))
    log_probs = exact_log_probs(model, inputs)
    advantages = inputs["advantages"].unsqueeze(-1)
    weight = 1 / (1 + torch.exp(advantages * log_probs.detach()))
    loss = -(weight * advantages * log_probs * inputs["completion_mask"]).sum() / inputs["completion_mask"].sum()
    torch.testing.assert_close(ours, gradients(trainer, loss), atol=1e-6, rtol=1e-4)


def test_log_probs_that_came_with_the_completions_screen_for_free(make, inputs):
    inputs["old_per_token_logps"] = torch.zeros(B, T)
    inputs["old_per_token_logps"][5] = -9.0  # by these, row 5 alone is worth it
    inputs["advantages"] = inputs["advantages"].abs()
    passes = []
    for screen in ("rollout", "exact"):
        settings = {"kondo_gate_rate": 1 / B, "kondo_gate_history_size": 0, "kondo_gate_screen": screen}
        trainer = make(use_kondo_gate=True, **settings)
        passes.clear()
        trainer.model.register_forward_pre_hook(
            lambda *call: passes.append(call[2]["input_ids"].tolist()), with_kwargs=True
        )
        trainer.compute_loss(trainer.model.train(), inputs)
        assert len(passes) == {"rollout": 1, "exact": 2}[screen]
        whole = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
        assert (passes[-1][0] == whole[5, 2:-1].tolist()) == (screen == "rollout")


def test_gathered_rows_lose_the_columns_that_are_padding_in_all_of_them(inputs):
    few = gather(inputs, torch.tensor([0, 4]))  # prompts of 4 tokens, completions of 1 and 2
    assert few["prompt_ids"].shape == (2, 4)
    assert few["completion_ids"].shape == few["completion_mask"].shape == (2, 2)
    assert torch.equal(few["completion_ids"], inputs["completion_ids"][[0, 4], :2])
    assert few["advantages"].shape == (2,)


def test_the_price_is_the_quantile_of_a_rolling_history_after_a_warm_up(make, inputs):
    trainer = make(use_kondo_gate=True, kondo_gate_rate=0.25, kondo_gate_history_size=20, kondo_gate_warmup=20)
    seen = []
    for batch in range(3):
        given = inputs | {"advantages": torch.randn(B) + batch}
        mask = inputs["completion_mask"]
        log_probs = exact_log_probs(trainer.model, inputs).detach()
        seen += ((-given["advantages"].unsqueeze(-1) * log_probs * mask).sum(1) / mask.sum(1)).tolist()
        trainer._metrics["train"].clear()
        trainer.compute_loss(trainer.model.train(), given)
        window = sorted(seen[-20 - B :], reverse=True)
        logged = {name: values[-1] for name, values in trainer._metrics["train"].items()}
        if batch == 0:
            assert "kondo/price" not in logged  # the gate stands open
            assert logged["kondo/gate_rate"] == 1
        else:
            assert logged["kondo/price"] == pytest.approx(window[int(0.25 * len(window)) - 1], abs=1e-6)
            above = sum(chi > logged["kondo/price"] + 1e-6 for chi in seen[-B:])
            assert logged["kondo/backward_rows"] in (above, above + 1)  # the price may be that of a row in the batch


def test_steps_that_keep_nothing_move_nothing_weight_decay_included(make):
    trainer = make(3, use_kondo_gate=True, kondo_gate_price=0.0, weight_decay=0.5, logging_steps=1)
    trainer.reward_funcs = [lambda completions, **_: [1.0] * len(completions)]
    before = [p.clone() for p in trainer.model.parameters()]
    with_graph = []
    trainer.model.register_forward_pre_hook(
        lambda module, *_: with_graph.append(torch.is_grad_enabled() and module.training)
    )
    trainer.train()
    assert with_graph
    assert not any(with_graph)
    assert all(torch.equal(a, b) for a, b in zip(before, trainer.model.parameters(), strict=True))
    assert trainer.state.log_history[0]["kondo/skipped_fraction"] == 1


def test_a_starved_trainer_is_fed_the_best_completion(make, inputs):
    trainer = make(use_kondo_gate=True, kondo_gate_price=1e3, max_consecutive_drops=2)
    for _ in range(5):
        trainer.compute_loss(trainer.model.train(), inputs)
    assert trainer._metrics["train"]["kondo/backward_rows"] == [0, 0, 1, 0, 0]


def test_settings_that_make_no_sense_are_refused(tmp_path):
    for settings, words in [
        ({"kondo_gate_rate": 0.5, "kondo_gate_price": 0.0}, "exclude each other"),
        ({"kondo_gate_rate": 1.5}, r"\(0, 1\]"),
        ({"kondo_gate_temperature": -1.0}, ">= 0"),
        ({"kondo_gate_screen": "draft"}, "'rollout' and 'exact'"),
        ({"kondo_gate_rate": 2.0}, "kondo_gate_rate must be in"),
        ({"kondo_gate_priority": "joy"}, "kondo_gate_priority must be one of"),
        ({"kondo_gate_alpha": 0.9}, "no effect with kondo_gate_priority=delight"),
    ]:
        with pytest.raises(ValueError, match=words):
            KondoGRPOConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False, use_kondo_gate=True, **settings)


def test_the_gates_other_settings_are_the_trainers_from_the_command_line_too(make, inputs, tmp_path):
    words = f"--output_dir {tmp_path} --use_cpu --bf16 False --use_kondo_gate --kondo_gate_rate 0.25"
    (parsed,) = HfArgumentParser(KondoGRPOConfig).parse_args_into_dataclasses(
        [*words.split(), "--kondo_gate_priority", "additive", "--kondo_gate_alpha", "0.25"]
    )
    expected = GateSettings(
        rate=0.25, priority="additive", alpha=0.25, unit="sequence", history=512, warmup=32, max_consecutive_drops=16
    )
    assert parsed.gate_settings() == expected

    settings = {"kondo_gate_rate": 1 / B, "kondo_gate_history_size": 0, "kondo_gate_priority": "surprisal"}
    trainer = make(use_kondo_gate=True, **settings)
    inputs["old_per_token_logps"] = torch.full((B, T), -1.0)
    inputs["old_per_token_logps"][7] = -2.0
    inputs["advantages"][7] = -3.0  # by delight the last to be kept
    rows = trainer._screened(inputs)
    assert rows.tolist() == [7]


def test_grpo_with_the_gate_learns_to_write_backwards(make):
    """From a reward of about 0.4, that of guessing, with a tenth of the completions in a graph."""
    trainer = make(150, use_kondo_gate=True, kondo_gate_rate=0.1, logging_steps=10)
    trainer.train()
    logs = [entry for entry in trainer.state.log_history if "reward" in entry]
    assert logs[0]["reward"] < 0.55
    assert logs[-1]["reward"] > 0.8
    names = "delight_mean gate_rate price backward_rows backward_tokens skipped_fraction seconds_saved"
    assert all(f"kondo/{name}" in logs[-1] for name in names.split())
    assert sum(entry["kondo/gate_rate"] for entry in logs) / len(logs) == pytest.approx(0.1, abs=0.05)


def lonely(rank, world, port, folder):
    """Rank 1 never has anything to learn from; of every four micro-batches, the last two teach nobody anything."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "ACCELERATE_USE_CPU": "true"}
    trainer = build(
        4, batch=8, folder=folder, use_kondo_gate=True, kondo_gate_price=0.0, gradient_accumulation_steps=2,
        steps_per_generation=1, weight_decay=0.0, ddp_backend="gloo",
    )  # fmt: skip
    calls, moves = [], []

    def reward(completions, **_):
        calls.append(len(calls))
        dull = rank == 1 or calls[-1] % 4 in (1, 2, 3)
        return [0.0 if dull else float("a" in text) for text in completions]

    trainer.reward_funcs = [reward]
    start = copy.deepcopy(trainer.model.state_dict())
    keep = trainer.gate.decide
    trainer.gate.decide = lambda *given: (lambda made: moves.append(int(made[0].keep.sum())) or made)(keep(*given))
    trainer.train()
    moved = any(not torch.equal(start[name], value) for name, value in trainer.model.state_dict().items())
    torch.save((trainer.model.state_dict(), moves, moved), f"{folder}/{rank}.pt")


def test_two_processes_stay_equal_when_one_keeps_nothing_and_when_a_window_ends_on_nothing(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    multiprocessing.spawn(lonely, (2, port, str(tmp_path)), nprocs=2)
    (first, kept, moved), (second, none, _) = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    assert moved
    assert sum(kept) > 0
    assert not any(none)
    assert all(torch.equal(value, second[name]) for name, value in first.items())
