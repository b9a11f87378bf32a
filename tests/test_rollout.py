"""Answers that a Hugging Face model samples, however generation ends them: a token nobody chose is no decision."""

import gc

import pytest
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import GenerationConfig, PreTrainedTokenizerFast, StoppingCriteria, StoppingCriteriaList

from kondo import packing
from kondo.integrations.transformers import rollout
from tests.test_transformers import END, PAD, V, llama

NEW = 9
STOP = torch.tensor([2, 3, 4])


class Stops(StoppingCriteria):
    """Ends a row with any of three tokens."""

    def __call__(self, input_ids, scores, **kwargs):
        return torch.isin(input_ids[:, -1], STOP)


def letters():
    """A token per letter, from 2 on."""
    vocabulary = {token: i for i, token in enumerate(["<pad>", "<end>", *"abcdefghijklmno"])}
    plain = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    plain.pre_tokenizer, plain.decoder = pre_tokenizers.Split(Regex("."), "isolated"), decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=plain, pad_token="<pad>", eos_token="<end>")


WAYS = {
    "model": ({}, [END]),
    "int": ({"eos_token_id": 5}, [5]),
    "list": ({"eos_token_id": [5, 6]}, [5, 6]),
    "tensor": ({"eos_token_id": torch.tensor([5, 6])}, [5, 6]),
    "config": ({"generation_config": GenerationConfig(eos_token_id=[7, 8], pad_token_id=PAD)}, [7, 8]),
    "strings": ({"stop_strings": ["b", "c"], "tokenizer": letters()}, [END, 3, 4]),
    "criteria": ({"stopping_criteria": StoppingCriteriaList([Stops()])}, [END, *STOP.tolist()]),
    "criteria alone": ({"stopping_criteria": StoppingCriteriaList([Stops()]), "eos_token_id": None}, STOP.tolist()),
    "pad is end": ({"pad_token_id": END}, [END]),
}


def prompts(rows=20):
    ids = torch.randint(2, V, (rows, 5))
    mask = torch.ones_like(ids)
    mask[::3, :2] = 0
    return ids, mask


@pytest.mark.parametrize("way", WAYS)
def test_an_answer_ends_where_generation_ends_it_and_what_comes_after_is_no_decision(way):
    options, ends = WAYS[way]
    model = llama()
    if way == "criteria alone":
        model.generation_config.eos_token_id = None
    ids, mask = prompts()
    data = rollout(model, ids, mask, max_new_tokens=NEW, **options)
    width = data.actions.shape[1] - ids.shape[1] + 1
    lengths = []
    for row, chosen in zip(data.actions[:, 4:].tolist(), data.action_mask[:, 4:].tolist(), strict=True):
        first = next((i + 1 for i, token in enumerate(row) if token in ends), width)
        assert chosen == [1] * first + [0] * (width - first)
        lengths.append(first)
    assert min(lengths) < width
    assert not data.action_mask[:, :4].any()
    screened = packing.log_probs(model, data.input_ids, data.actions, data.attention_mask)
    torch.testing.assert_close(screened * data.action_mask, data.log_probs)


def test_settings_of_a_generation_config_are_followed_and_others_sample_from_the_model():
    ids, mask = prompts()
    model = llama()
    model.generation_config.top_k = 1
    config = GenerationConfig(do_sample=False, eos_token_id=END, pad_token_id=PAD)
    greedy = [rollout(model, ids, mask, max_new_tokens=4, generation_config=config).actions for _ in range(2)]
    assert torch.equal(*greedy)
    assert config.max_new_tokens is None
    assert not torch.equal(*(rollout(model, ids, mask, max_new_tokens=4).actions[:, :6] for _ in range(2)))


def test_several_answers_to_a_prompt_are_rows_of_their_own():
    ids, mask = prompts(4)
    data = rollout(llama(), ids, mask, max_new_tokens=NEW, num_return_sequences=3)
    assert torch.equal(data.input_ids[:, :5], ids.repeat_interleave(3, dim=0))
    assert torch.equal(data.attention_mask[:, :5], mask.repeat_interleave(3, dim=0))


@pytest.mark.parametrize(
    ("mask", "options", "said"),
    [(1, {"num_beams": 2}, "without beams"), (0, {}, "padded on the left")],
)
def test_what_cannot_be_sampled_token_by_token_is_refused(mask, options, said):
    model = llama()
    ids = torch.randint(2, V, (3, 5))
    given = torch.ones_like(ids)
    given[:, -1] = mask
    with pytest.raises(ValueError, match=said):
        rollout(model, ids, given, max_new_tokens=4, **options)
    assert model.training
    assert "_get_stopping_criteria" not in vars(model)


class Live(TorchDispatchMode):
    """The most elements that tensors over the vocabulary ever held at once, views not counted."""

    def __init__(self, vocabulary):
        super().__init__()
        self.vocabulary, self.storages, self.most = vocabulary, {}, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for x in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(x, torch.Tensor) and x.dim() and x.shape[-1] == self.vocabulary:
                self.storages[x.untyped_storage()._cdata] = (
                    StorageWeakRef(x.untyped_storage()),
                    x.untyped_storage().nbytes() // x.element_size(),
                )
        self.storages = {key: kept for key, kept in self.storages.items() if not kept[0].expired()}
        self.most = max(self.most, sum(size for _, size in self.storages.values()))
        return result


def test_sampling_holds_the_policy_of_a_few_steps_and_not_of_all():
    model, rows, new = llama(), 6, 24
    ids = torch.randint(2, V, (rows, 5))
    gc.collect()
    with Live(V) as live:
        rollout(model, ids, torch.ones_like(ids), max_new_tokens=new, eos_token_id=None)
    assert live.most < rows * new * V / 2
    assert live.most >= rows * V


def test_every_module_has_its_own_mode_back_after_sampling():
    model = llama()
    model.model.layers[1].eval()
    before = [module.training for module in model.modules()]
    ids, mask = prompts(3)
    rollout(model, ids, mask, max_new_tokens=2)
    assert [module.training for module in model.modules()] == before
