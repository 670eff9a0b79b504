"""The served causal LM for predictors: returns pooled hidden states or a few greedy tokens; trains an MLP on states.

This file and `lora_tuning` import torch; predictors that need these files load them by name at their first use.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from jinja2 import TemplateError
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from learning.features.length_predictor import Prompt
from learning.features.text_encoders import VectorCache, Vectors
from learning.features.whole_weights import whole_weights_only

BATCH = 16  # prompts of one forward pass: more need more memory beside that of the served model; not tuned
STATEMENT_TOKENS = 30  # enough for a number with words around it; the paper's value (Sequence Scheduling, appendix C)
NUMBER = re.compile(r"\d+")
MOST_NUMBER = 1 << 20  # a larger number counts as this one
MOST_PROMPT_TOKENS = 1024  # only the end of a longer prompt is read, which bounds memory and time; not tuned


class LanguageModel:
    """A model with its tokenizer, loaded from a directory or a hub id, on the CPU.

    States and numbers of a text are cached, because predictor and trainer ask for the same texts again.
    """

    def __init__(self, source: str | Path) -> None:
        self.source = str(source)
        # never runs the model's own code, and never reads pickled weights, which may run code
        self.tokenizer = AutoTokenizer.from_pretrained(self.source, trust_remote_code=False)
        with whole_weights_only():
            self.model: Any = AutoModelForCausalLM.from_pretrained(
                self.source, trust_remote_code=False, use_safetensors=True
            ).eval()
        if self.tokenizer.pad_token_id is None:
            self.tokenizer.pad_token = self.tokenizer.eos_token
        self._states = VectorCache(self._read_states, self.model.config.hidden_size)
        self._numbers = VectorCache(self._say_numbers, 1)

    def render(self, prompt: Prompt, question: str = "") -> str:
        """Return the prompt in the model's chat template, with the `question` at the end of the input."""
        asked = _joined(prompt.input, question)
        if not self.tokenizer.chat_template:
            return _joined(prompt.instruction, asked) + "\n"
        if not prompt.instruction:
            return self._in_template(("user", asked))
        try:
            return self._in_template(("system", prompt.instruction), ("user", asked))
        except TemplateError:  # some templates, such as Gemma's, refuse a system message
            return self._in_template(("user", _joined(prompt.instruction, asked)))

    def _in_template(self, *turns: tuple[str, str]) -> str:
        messages = [{"role": role, "content": content} for role, content in turns]
        return str(self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))

    def pooled_states(self, texts: Sequence[str]) -> Vectors:
        """Return the last layer's hidden states of each text, averaged over its tokens, (texts, hidden size)."""
        return self._states.encode(texts)

    def first_numbers(self, texts: Sequence[str]) -> list[int | None]:
        """Return the first number in the greedy continuation of each text, or None."""
        return [int(number) or None for number in self._numbers.encode(texts)[:, 0]]

    def _say_numbers(self, texts: list[str]) -> Vectors:
        found = [NUMBER.search(said) for said in self.generate(texts, STATEMENT_TOKENS)]
        return np.array([[min(int(match.group()), MOST_NUMBER) if match else 0] for match in found], np.float32)

    @torch.inference_mode()
    def _read_states(self, texts: list[str]) -> Vectors:
        rows = []
        for start in range(0, len(texts), BATCH):
            batch = self.encode(texts[start : start + BATCH])
            hidden = self.model(**batch, output_hidden_states=True).hidden_states[-1].float()
            mask = batch["attention_mask"][..., None]
            rows.append(((hidden * mask).sum(1) / mask.sum(1)).numpy())
        return np.concatenate(rows)

    @torch.inference_mode()
    def generate(self, texts: Sequence[str], most_tokens: int) -> list[str]:
        """Return the greedy continuation of each text, at most `most_tokens` tokens long."""
        generated: list[str] = []
        for start in range(0, len(texts), BATCH):
            batch = self.encode(texts[start : start + BATCH])
            ids = self.model.generate(
                **batch, max_new_tokens=most_tokens, do_sample=False, pad_token_id=self.tokenizer.pad_token_id
            )
            generated += self.tokenizer.batch_decode(ids[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)
        return generated

    def encode(self, texts: Sequence[str]) -> Any:
        """Return ids and mask of these texts, padded on the left."""
        self.tokenizer.padding_side = self.tokenizer.truncation_side = "left"
        batch = self.tokenizer(
            list(texts), return_tensors="pt", padding=True, truncation=True, max_length=MOST_PROMPT_TOKENS
        )
        batch.pop("token_type_ids", None)
        return batch


def _joined(*parts: str) -> str:
    return "\n\n".join(part for part in parts if part)


@lru_cache(maxsize=1)
def shared_language_model(source: str) -> LanguageModel:
    """Return the untuned model, loaded once a process, so that its caches last and refits read only new prompts."""
    return LanguageModel(source)


# The MLP's settings. The paper gives neither architecture nor training schedule (Sequence Scheduling, Table 3). More
# units and steps fit the training answers more closely, a larger decay less closely; no value was tuned.
HIDDEN_UNITS = 64
STEPS = 300
LEARNING_RATE = 3e-3
WEIGHT_DECAY = 1e-2


def train_classifier(
    states: npt.NDArray[np.float32], bins: npt.NDArray[np.int64]
) -> dict[str, npt.NDArray[np.float32]]:
    """Train an MLP that classifies states (prompts, hidden size) into bins; predicting with it takes numpy alone.

    Returns its weights by name, with the `centre` and `spread` that standardise the states.
    """
    centre, spread = states.mean(axis=0), states.std(axis=0) + 1e-6
    inputs, targets = torch.from_numpy((states - centre) / spread), torch.from_numpy(bins)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        mlp = nn.Sequential(
            nn.Linear(states.shape[1], HIDDEN_UNITS), nn.ReLU(), nn.Linear(HIDDEN_UNITS, int(bins.max()) + 1)
        )
    optimizer = torch.optim.AdamW(mlp.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    for _ in range(STEPS):
        loss = nn.functional.cross_entropy(mlp(inputs), targets)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    weights = {name: values.detach().numpy() for name, values in mlp.state_dict().items()}
    return weights | {"centre": centre, "spread": spread}
