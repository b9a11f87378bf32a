"""GRPO with DG and the gate, on a Llama of two layers and a tokenizer of a few letters."""

from functools import partial

import peft
import pytest
import torch
from transformers import HfArgumentParser, LlamaConfig
from trl import GRPOTrainer

from examples.grpo_reversal import trainer as build
from kondo.gate import GateSettings
from kondo.integrations.trl import KondoGRPOConfig, KondoGRPOTrainer, gather
from kondo.integrations.trl_metrics import PassTimes

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


def drop_out(model, share):
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = share


def exact_log_probs(model, inputs):
    ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
    mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
    logits = model(ids, attention_mask=mask).logits[:, H - 1 : -1]
    return logits.log_softmax(-1).gather(-1, inputs["completion_ids"].unsqueeze(-1)).squeeze(-1)


@pytest.mark.parametrize("loss_type", ["grpo", "bnpo", "dr_grpo", "dapo", "sapo", "luspo", "cispo", "vespo"])
def test_kept_rows_have_the_gradient_of_grpos_loss_with_the_others_multiplied_by_zero(make, inputs, loss_type):
    settings = {"kondo_gate_rate": 0.25, "kondo_gate_history_size": 0, "kondo_gate_screen_batch_size": 5}
    trainer = make(use_kondo_gate=True, **settings, loss_type=loss_type)
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
    assert rows == [(False, 5), (False, 5), (False, 2), (True, 3)]
    assert torch.equal(inputs["advantages"], before)  # the buffered batch is another iteration's too
    masked = inputs | {"advantages": inputs["advantages"] * keep}
    theirs = gradients(trainer, GRPOTrainer._compute_loss(trainer, model, masked))
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-4)
    assert any(g.abs().max() > 1e-4 for g in ours)


@pytest.mark.parametrize(("level", "gain"), [("token", 1.0), ("token", 2.0), ("response", 1.0)])
def test_delight_weights_a_token_by_the_sigmoid_of_its_own_or_of_its_responses_mean_delight(make, inputs, level, gain):
    trainer = make(use_delight=True, delight_level=level, delight_gain=gain, loss_type="dapo")
    model = trainer.model.train()
    ours = gradients(trainer, trainer.compute_loss(model, inputs))
    log_probs, mask = exact_log_probs(model, inputs), inputs["completion_mask"]
    advantages = inputs["advantages"].unsqueeze(-1)
    chi = -advantages * log_probs.detach()
    if level == "response":
        chi = torch.stack([row[held.bool()].mean() for row, held in zip(chi, mask, strict=True)]).unsqueeze(-1)
    weight = gain / (1 + torch.exp(-chi))
    loss = -(weight * advantages * log_probs * mask).sum() / mask.sum()
    torch.testing.assert_close(ours, gradients(trainer, loss), atol=1e-6, rtol=1e-4)
    trainer = make(use_delight=True, delight_level=level, delight_gain=2.0)
    seen = inputs | {"advantages": torch.full((B,), 1e-9)}  # no delight: a gain of 2 leaves it as it is
    trainer._trained = seen
    trainer._get_per_token_logps_and_entropies(trainer.model, inputs["prompt_ids"], inputs["prompt_mask"], T)
    torch.testing.assert_close(seen["advantages"], torch.full((B, T), 1e-9))


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
        assert len(passes) == {"rollout": 1, "exact": 3}[screen]
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


def test_settings_that_make_no_sense_or_have_no_effect_are_refused(tmp_path):
    on, off = {"use_kondo_gate": True}, {}
    for switches, settings, words in [
        (on, {"kondo_gate_rate": 0.5, "kondo_gate_price": 0.0}, "exclude each other"),
        (on, {"kondo_gate_rate": 1.5}, r"\(0, 1\]"),
        (on, {"kondo_gate_temperature": -1.0}, ">= 0"),
        (on, {"kondo_gate_screen": "draft"}, "'auto', 'rollout', 'exact'"),
        (on, {"kondo_gate_screen_batch_size": 0}, ">= 1"),
        (on, {"kondo_gate_rate": 2.0}, "kondo_gate_rate must be in"),
        (on, {"kondo_gate_priority": "joy"}, "kondo_gate_priority must be one of"),
        (on, {"kondo_gate_alpha": 0.9}, "no effect with kondo_gate_priority=delight"),
        (on, {"kondo_gate_rate": 0.5, "kondo_gate_history_size": 16}, "kondo_gate_warmup=32 must be <="),
        (on, {"kondo_gate_advantage": "raw"}, "'scaled', 'centred'"),
        (on, {"kondo_gate_advantage": "centred", "multi_objective_aggregation": "normalize_then_sum"}, "centred"),
        (on, {"delight_gain": 2.0}, "delight_gain=2.0 has no effect without use_delight"),
        ({"use_delight": True}, {"delight_gain": 0.0}, "> 0"),
        ({"use_delight": True}, {"delight_level": "batch"}, "'token', 'response'"),
        (off, {"delight_level": "response"}, "no effect without use_delight"),
        (off, {"kondo_gate_rate": 0.1}, "kondo_gate_rate=0.1 has no effect without use_kondo_gate=True"),
        (off, {"kondo_gate_priority": "uniform"}, "no effect without use_kondo_gate"),
        (off, {"max_consecutive_drops": None}, "no effect without use_kondo_gate"),
    ]:
        with pytest.raises(ValueError, match=words):
            KondoGRPOConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False, **switches, **settings)
    KondoGRPOConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False, kondo_gate_rate=1.0)  # nothing is asked for


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
    rows, _ = trainer._screened(inputs)
    assert rows.tolist() == [7]


def test_grpo_with_the_gate_learns_to_write_backwards(make):
    """From a reward of about 0.4, that of guessing, with a tenth of the completions in a graph."""
    trainer = make(150, use_kondo_gate=True, kondo_gate_rate=0.1, logging_steps=10)
    trainer.train()
    logs = [entry for entry in trainer.state.log_history if "reward" in entry]
    assert logs[0]["reward"] < 0.55
    assert logs[-1]["reward"] > 0.8
    names = "delight_mean gate_rate price backward_rows backward_tokens skipped_fraction seconds_screen seconds_update"
    assert all(f"kondo/{name}" in logs[-1] for name in names.split())
    assert sum(entry["kondo/gate_rate"] for entry in logs) / len(logs) == pytest.approx(0.1, abs=0.05)


CASES = [
    ("grpo", {"steps_per_generation": 2, "gradient_accumulation_steps": 2}),
    ("bnpo", {"num_iterations": 2, "epsilon": 0.01}),
    ("dr_grpo", {"scale_rewards": "group", "delta": 1.5}),
    ("dapo", {"num_iterations": 2, "steps_per_generation": 2, "gradient_accumulation_steps": 2}),
    ("sapo", {"steps_per_generation": 2}),
    ("luspo", {"importance_sampling_level": "sequence"}),
    ("cispo", {"epsilon_high": 5.0, "gradient_accumulation_steps": 2}),
    ("vespo", {"top_entropy_quantile": 0.5}),
]


@pytest.mark.parametrize(("loss_type", "others"), CASES, ids=[name for name, _ in CASES])
def test_with_the_gate_off_or_at_rate_one_it_is_grpo_bit_for_bit(make, loss_type, others):
    found = {}
    for name, kind, settings in [
        ("plain", GRPOTrainer, {}),
        ("off", None, {}),
        ("open", None, {"use_kondo_gate": True, "kondo_gate_advantage": "centred"}),
    ]:
        kinds = {} if kind is None else {"kind": kind}
        trainer = make(2, batch=8, hidden=16, logging_steps=1, loss_type=loss_type, **others, **settings, **kinds)
        drop_out(trainer.model, 0.1)
        start = [p.clone() for p in trainer.model.parameters()]
        trainer.train()
        assert any(not torch.equal(a, b) for a, b in zip(start, trainer.model.parameters(), strict=True))
        logs = [
            {key: value for key, value in entry.items() if not key.startswith(("kondo/", "train_", "step_time"))}
            for entry in trainer.state.log_history
        ]
        found[name] = ([p.detach().clone() for p in trainer.model.parameters()], logs)
    for name in ("off", "open"):
        assert all(torch.equal(a, b) for a, b in zip(found["plain"][0], found[name][0], strict=True)), name
        assert found[name][1] == found["plain"][1]


def test_a_resumed_run_ends_with_the_very_weights_of_one_that_was_not_interrupted(make):
    """Two steps fill the warm-up: without its history a resumed gate would stand open again."""
    settings = {"kondo_gate_rate": 0.25, "kondo_gate_history_size": 64, "kondo_gate_warmup": 32, "save_steps": 2}
    made = partial(
        make, 4, batch=16, hidden=16, use_kondo_gate=True, save_strategy="steps", logging_steps=1, **settings
    )
    whole, again = made(), made()
    whole.train()
    again.train(resume_from_checkpoint=f"{again.args.output_dir}/checkpoint-2")
    assert whole.state.log_history[-2]["kondo/gate_rate"] < 0.75
    assert torch.equal(whole.gate.history, again.gate.history)
    assert all(torch.equal(a, b) for a, b in zip(whole.model.parameters(), again.model.parameters(), strict=True))


def test_completions_whose_log_probs_are_nan_are_counted_and_told_of_once(make, inputs):
    trainer = make(use_kondo_gate=True, kondo_gate_rate=1 / B, kondo_gate_history_size=0)
    inputs["sampling_per_token_logps"] = torch.full((B, T), -1.0)
    inputs["sampling_per_token_logps"][3, 0] = torch.nan
    inputs["advantages"] = torch.full((B,), 0.1)
    inputs["advantages"][3] = 5.0
    with pytest.warns(UserWarning, match="NaN or infinite") as told:
        rows = [trainer._screened(inputs)[0].tolist() for _ in range(2)]
    assert len(told) == 1
    assert rows == [[0], [0]]
    assert trainer._metrics["train"]["kondo/nonfinite_rows"] == [1, 1]


def test_entropy_under_grpos_own_name_is_that_of_all_rows_and_of_the_kept_under_another(make, inputs):
    for screen in ("exact", "rollout"):
        settings = {"kondo_gate_rate": 0.25, "kondo_gate_history_size": 0, "kondo_gate_screen": screen}
        trainer = make(use_kondo_gate=True, **settings)
        given = inputs | ({} if screen == "exact" else {"old_per_token_logps": exact_log_probs(trainer.model, inputs)})
        with torch.no_grad():
            ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
            mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
            log_policy = trainer.model(ids, attention_mask=mask).logits[:, H - 1 : -1].log_softmax(-1)
        entropy, held = -(log_policy.exp() * log_policy).sum(-1), inputs["completion_mask"].bool()
        kept = trainer.gate.decision(
            exact_log_probs(trainer.model, inputs), inputs["advantages"].unsqueeze(-1).expand(B, T), mask=held
        )[0].keep
        trainer.compute_loss(trainer.model.train(), given)
        logged = trainer._metrics["train"]
        assert logged["kondo/kept_entropy"] == [pytest.approx(entropy[kept][held[kept]].mean().item(), rel=1e-5)]
        assert "clip_ratio/low_mean" not in logged
        assert "kondo/kept_clip_ratio/low_mean" in logged
        if screen == "exact":
            assert logged["entropy"] == [pytest.approx(entropy[held].mean().item(), rel=1e-5)]
        else:
            assert "entropy" not in logged


def test_the_seconds_of_a_whole_batch_are_told_only_where_the_updates_so_far_tell_them():
    sloped, same, flat, noisy = (PassTimes() for _ in range(4))
    for i in range(20):
        tokens = 100 + 10 * (i % 5)
        sloped.add(tokens, (9.0 if i == 0 else 1.0) + 0.01 * tokens)
        same.add(100, 2.0)
        flat.add(tokens, 1.0)
        noisy.add(tokens, 1.0 + 3 * (i % 3))
    assert sloped.predicted(1000) == pytest.approx(11.0)
    assert flat.predicted(1000) == pytest.approx(1.0)
    assert same.predicted(1000) is None
    assert noisy.predicted(1000) is None


def test_no_seconds_are_saved_on_a_model_whose_passes_take_a_second_whatever_their_size(make):
    trainer = make(14, batch=16, hidden=16, use_kondo_gate=True, kondo_gate_rate=0.25, logging_steps=1)
    now = [0.0]
    trainer._clock = lambda: now[0]
    trainer.model.register_forward_pre_hook(lambda *_: now.__setitem__(0, now[0] + 1.0))
    trainer.train()
    logs = [entry for entry in trainer.state.log_history if "kondo/seconds_update" in entry]
    assert {entry["kondo/seconds_screen"] for entry in logs} == {2.0}  # 16 rows, 8 at a time
    assert all(entry["kondo/seconds_update"] <= 1 for entry in logs)
    saved = [entry["kondo/seconds_saved"] for entry in logs if "kondo/seconds_saved" in entry]
    assert saved
    assert all(-2 - 1e-6 <= each <= -1 + 1e-6 for each in saved)  # −1: nothing was kept, and a pass spared


def test_the_gate_can_be_given_advantages_that_no_deviation_divides(make):
    """One group pays 0 or 1, the other 0 or 0.01: divided by their deviations they would look the same."""
    for advantage in ("scaled", "centred"):
        settings = {"kondo_gate_advantage": advantage, "kondo_gate_price": 0.0, "scale_rewards": "group"}
        trainer = make(1, batch=16, hidden=16, use_kondo_gate=True, **settings)
        pays = [1.0, 0.0] * 4 + [0.01, 0.0] * 4
        trainer.reward_funcs = [lambda completions, pays=pays, **_: pays]
        seen, decide = [], trainer.gate.decide
        trainer.gate.decide = lambda *given, decide=decide, seen=seen: seen.append(given[1]) or decide(*given)
        trainer.train()
        expected = [-0.5] * 4 + [-0.005] * 4 + [0.005] * 4 + [0.5] * 4
        found = torch.cat(seen).sort().values
        if advantage == "centred":
            torch.testing.assert_close(found, torch.tensor(expected))
        else:
            assert found.abs().min() > 0.5


def test_what_is_logged_of_a_screen_is_what_it_saw_and_kept(make, inputs):
    trainer = make(use_kondo_gate=True, kondo_gate_price=1.0)
    lengths = inputs["completion_mask"].sum(1)
    inputs["old_per_token_logps"] = -torch.arange(B).float().unsqueeze(-1).expand(B, T) / 2
    inputs["advantages"] = torch.tensor([0.0, 1.0, -1.0] * 4)
    chi = inputs["advantages"] * torch.arange(B) / 2
    keep = chi > 1
    trainer._screened(inputs)
    logged = {name.removeprefix("kondo/"): values[0] for name, values in trainer._metrics["train"].items()}
    expected = {
        "delight_mean": chi.mean().item(),
        "delight_std": chi.std(correction=0).item(),
        "off_neutral_share": ((chi.sigmoid() - 0.5).abs() > 0.05).float().mean().item(),
        "zero_advantage_share": 4 / 12,
        "kept_positive_share": keep.sum().item() / 12,
        "kept_negative_share": 0,
        "dropped_positive_share": (~keep & (chi > 0)).sum().item() / 12,
        "dropped_negative_share": 4 / 12,
        "kept_length": lengths[keep].float().mean().item(),
        "dropped_length": lengths[~keep].float().mean().item(),
    }
    assert 0 < keep.sum() < 4
    assert {name: logged[name] for name in expected} == pytest.approx(expected)


def test_survivors_are_counted_by_group_over_all_micro_batches_of_a_generation(make):
    settings = {"kondo_gate_price": 0.0, "steps_per_generation": 2, "gradient_accumulation_steps": 2}
    trainer = make(2, batch=8, hidden=16, use_kondo_gate=True, logging_steps=1, **settings)
    trainer.reward_funcs = [lambda completions, **_: [1.0] + [0.0] * 7 + [0.5] * 8]  # one to keep, then none
    trainer.train()
    logs = [entry for entry in trainer.state.log_history if "reward" in entry]
    assert len(logs) == 2
    assert all(entry["kondo/survivors_per_group"] == 0.5 for entry in logs)
    assert all(entry["kondo/groups_without_survivors"] == 0.5 for entry in logs)


def test_a_truncated_samplers_log_probs_find_less_and_are_not_screened_with(make, inputs):
    """Recall of what exact delight keeps: the policy's log-probs find all of it, those renormalised by top-k do not."""
    rows, recall = 64, {}
    for top_k in (0, 2):
        settings = {"kondo_gate_rate": 0.25, "kondo_gate_history_size": 0, "top_k": top_k, "letters": "abcdefgh"}
        trainer = make(1, use_kondo_gate=True, **settings)
        model = trainer.model.eval()
        with torch.no_grad():
            model.lm_head.weight.mul_(3)
            ids, sampled = torch.randint(2, 10, (rows, H)), []
            for _ in range(T):
                logits = model(ids).logits[:, -1]
                if top_k:
                    logits = logits.masked_fill(logits < logits.topk(top_k).values[:, -1:], -torch.inf)
                token = torch.multinomial(logits.softmax(-1), 1)
                sampled.append(logits.log_softmax(-1).gather(-1, token))
                ids = torch.cat([ids, token], 1)
        ones = torch.ones(rows, H).long()
        given = {
            "prompt_ids": ids[:, :H],
            "prompt_mask": ones,
            "completion_ids": ids[:, H:],
            "advantages": torch.randn(rows).sign(),
        }
        given |= {"completion_mask": ones[:, :T], "sampling_per_token_logps": torch.cat(sampled, 1)}
        decide = trainer.gate.decide
        exact = decide(trainer._log_probs(given)[0], given["advantages"], ones[:, :T])[0].keep
        rollout = decide(given["sampling_per_token_logps"], given["advantages"], ones[:, :T])[0].keep
        recall[top_k] = ((exact & rollout).sum() / exact.sum()).item()
        if top_k:
            with pytest.warns(UserWarning, match="with top_k the sampler's") as told:
                found = [trainer._screened(given)[0] for _ in range(2)]
            assert len(told) == 1
            assert torch.equal(found[0], exact.nonzero().squeeze(-1))
    assert recall[0] == 1
    assert recall[2] < 0.9
    with pytest.raises(ValueError, match="not the policy's; set kondo_gate_screen"):
        make(1, use_kondo_gate=True, kondo_gate_rate=0.5, kondo_gate_screen="rollout", top_k=2)._screened(given)


def test_settings_of_the_sampler_that_change_its_probabilities_are_known(tmp_path):
    for settings, names in [
        ({"temperature": 0.7}, []),
        ({"top_p": 0.9, "min_p": 0.1}, ["top_p", "min_p"]),
        ({"top_p": 0.9, "generation_kwargs": {"top_p": 1.0, "seed": 1}}, []),
        ({"generation_kwargs": {"temperature": 0.5}}, ["generation_kwargs['temperature']"]),
        ({"use_vllm": True, "vllm_mode": "server", "temperature": 0.7}, ["temperature"]),
        ({"repetition_penalty": 1.2}, ["repetition_penalty"]),
    ]:
        config = KondoGRPOConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False, **settings)
        assert config.truncations() == names


def test_checkpointed_activations_change_no_gradient_and_a_screen_tosses_no_coins(make, inputs):
    found = []
    for checkpointing in (False, True):
        trainer = make(use_kondo_gate=True, kondo_gate_rate=0.25, kondo_gate_history_size=0)
        if checkpointing:  # as train() does
            trainer.model.gradient_checkpointing_enable()
        found.append(gradients(trainer, trainer.compute_loss(trainer.model.train(), inputs)))
    torch.testing.assert_close(*found)
    trainer = make(use_kondo_gate=True, kondo_gate_rate=0.25)
    drop_out(trainer.model.train(), 0.5)
    before = torch.get_rng_state()
    first, second = (trainer._log_probs(inputs)[0] for _ in range(2))
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(first, second)
    assert trainer.model.training


def test_losses_over_all_rows_are_refused_with_a_gate(make, monkeypatch):
    with pytest.raises(ValueError, match="entropy bonus or a router's loss"):
        make(use_kondo_gate=True, entropy_coef=0.1)
    make(use_delight=True, entropy_coef=0.1)
    with pytest.raises(ValueError, match=r"top_entropy_quantile=0.5: a quantile over all tokens"):
        make(use_kondo_gate=True, kondo_gate_rate=0.5, top_entropy_quantile=0.5)
    make(use_kondo_gate=True, kondo_gate_rate=1.0, top_entropy_quantile=0.5)
    monkeypatch.setattr(LlamaConfig, "output_router_logits", False, raising=False)
    with pytest.raises(ValueError, match="entropy bonus or a router's loss"):
        make(use_kondo_gate=True, router_aux_loss_coef=0.1)


def test_each_iteration_over_a_batch_is_screened_and_only_adapters_are_trained(make):
    adapters = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    settings = {"kondo_gate_rate": 0.25, "kondo_gate_history_size": 0, "num_iterations": 2}
    trainer = make(
        2, batch=16, hidden=16, use_kondo_gate=True, **settings, kind=partial(KondoGRPOTrainer, peft_config=adapters)
    )
    screens, decide = [], trainer.gate.decide
    trainer.gate.decide = lambda *given: screens.append(given[0]) or decide(*given)
    before = {name: p.clone() for name, p in trainer.model.named_parameters()}
    trainer.train()
    assert len(screens) == 2
    moved = {name for name, p in trainer.model.named_parameters() if not torch.equal(p, before[name])}
    assert moved
    assert all("lora_" in name for name in moved)
