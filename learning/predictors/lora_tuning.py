"""LoRA instruction tuning (Sequence Scheduling 3.2, appendix A): a few adapters learn to print a number."""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict

from learning.predictors.language_model import LanguageModel

IGNORED = -100  # the label that PyTorch's cross entropy leaves out


def add_adapters(model: Any, targets: Sequence[str], rank: int = 8) -> PeftModel:
    """The model with untrained adapters on the projections of these names."""
    config = LoraConfig(
        r=rank, lora_alpha=2 * rank, lora_dropout=0.0, target_modules=list(targets), task_type="CAUSAL_LM"
    )
    with warnings.catch_warnings():  # peft 0.21 reads an attribute that transformers 5.23 calls deprecated
        warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing", category=FutureWarning)
        return get_peft_model(model, config)


def tune(
    language_model: LanguageModel,
    examples: Sequence[tuple[str, str]],
    *,
    epochs: int,
    rate: float,
    batch: int,
    seed: int,
) -> list[float]:
    """Train the adapters to write each example's second text after its first; returns the mean loss of each epoch."""
    model, tokenizer = language_model.model, language_model.tokenizer
    rng = np.random.default_rng(seed)
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=rate)
    model.train()
    losses = []
    for _ in range(epochs):
        batch_losses = []
        for rows in np.array_split(rng.permutation(len(examples)), max(1, len(examples) // batch)):
            ids, labels, mask = _padded(tokenizer, [examples[i] for i in rows], language_model.device)
            loss = model(input_ids=ids, attention_mask=mask, labels=labels).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            batch_losses.append(float(loss.detach()))
        losses.append(float(np.mean(batch_losses)))
    model.eval()
    return losses


def _padded(tokenizer: Any, examples: Sequence[tuple[str, str]], device: str) -> tuple[torch.Tensor, ...]:
    """Ids, labels and mask of prompt + answer + end token, padded on the right; the prompt has no labels."""
    pairs = []
    for prompt, answer in examples:
        before = tokenizer(prompt)["input_ids"]
        after = [*tokenizer(answer, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
        pairs.append((before, after))
    width = max(len(before) + len(after) for before, after in pairs)
    ids = torch.full((len(pairs), width), tokenizer.pad_token_id)
    labels = torch.full((len(pairs), width), IGNORED)
    mask = torch.zeros((len(pairs), width), dtype=torch.long)
    for row, (before, after) in enumerate(pairs):
        end = len(before) + len(after)
        ids[row, :end] = torch.tensor(before + after)
        labels[row, len(before) : end] = torch.tensor(after)
        mask[row, :end] = 1
    return ids.to(device), labels.to(device), mask.to(device)


def adapter_weights(model: PeftModel) -> dict[str, npt.NDArray[Any]]:
    """The adapters' weights by name."""
    return {name: w.detach().cpu().float().numpy() for name, w in get_peft_model_state_dict(model).items()}


def load_adapter_weights(model: PeftModel, weights: dict[str, npt.NDArray[Any]]) -> None:
    """Put stored weights into the adapters of a model."""
    set_peft_model_state_dict(model, {name: torch.from_numpy(np.array(w)) for name, w in weights.items()})
