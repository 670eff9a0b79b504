"""The served causal LM, for predictors that ask it: prompts in, pooled hidden states or a few greedy tokens out.

This file, `lora_tuning` and `mlp_classifier` load torch; predictors that need them import them at their first use.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from learning.predictors.length_predictor import Prompt

BATCH = 16  # prompts of one forward pass: more need more memory beside the served model's; not tuned
MOST_PROMPT_TOKENS = 1024  # the end of a longer prompt is read, which bounds memory and time; not tuned


class LanguageModel:
    """A model with its tokenizer, loaded from a directory or a hub id, or given."""

    def __init__(self, source: str | Path, model: Any = None, tokenizer: Any = None, device: str = "cpu") -> None:
        self.source = str(source)
        self.device = device
        self.tokenizer = tokenizer or AutoTokenizer.from_pretrained(self.source)
        self.model = (model or AutoModelForCausalLM.from_pretrained(self.source)).to(device).eval()
        if self.tokenizer.pad_token_id is None:
            self.tokenizer.pad_token = self.tokenizer.eos_token

    def render(self, prompt: Prompt, question: str = "") -> str:
        """The prompt in the model's chat template, with a question of ours at its end."""
        content = "\n\n".join(part for part in (prompt.instruction, prompt.input, question) if part)
        if not self.tokenizer.chat_template:
            return content + "\n"
        messages = [{"role": "user", "content": content}]
        return str(self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))

    @torch.inference_mode()
    def pooled_states(self, prompts: Sequence[Prompt]) -> npt.NDArray[np.float32]:
        """The last layer's hidden states of each prompt, averaged over its tokens, (prompts, hidden size)."""
        rows = []
        for start in range(0, len(prompts), BATCH):
            batch = self._encode([self.render(p) for p in prompts[start : start + BATCH]])
            hidden = self.model(**batch, output_hidden_states=True).hidden_states[-1].float()
            mask = batch["attention_mask"][..., None]
            rows.append(((hidden * mask).sum(1) / mask.sum(1)).cpu().numpy())
        return np.concatenate(rows) if rows else np.zeros((0, self.model.config.hidden_size), np.float32)

    @torch.inference_mode()
    def generate(self, texts: Sequence[str], most_tokens: int) -> list[str]:
        """The greedy continuation of each text, at most `most_tokens` tokens long."""
        generated: list[str] = []
        for start in range(0, len(texts), BATCH):
            batch = self._encode(texts[start : start + BATCH])
            ids = self.model.generate(
                **batch, max_new_tokens=most_tokens, do_sample=False, pad_token_id=self.tokenizer.pad_token_id
            )
            generated += self.tokenizer.batch_decode(ids[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)
        return generated

    def _encode(self, texts: Sequence[str]) -> Any:
        self.tokenizer.padding_side = self.tokenizer.truncation_side = "left"
        batch = self.tokenizer(
            list(texts), return_tensors="pt", padding=True, truncation=True, max_length=MOST_PROMPT_TOKENS
        ).to(self.device)
        batch.pop("token_type_ids", None)
        return batch
