"""LoRA tuning (Sequence Scheduling 3.2, appendix A): trains adapters to print a length, or to encode it in a state."""

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from torch.nn.utils.rnn import pad_sequence

from learning.predictors.language_model import BATCH, LanguageModel

IGNORED = -100  # the label that PyTorch's cross entropy leaves out
PAPER_RATE, PAPER_PARAMETERS = 5e-5, 6.7e9  # appendix A, for LLaMA-7B
MOST_RATE = 1e-2  # with a higher rate the smallest model diverged
RANK = 8  # rank of the adapters
TUNED_BATCH = 16  # texts of one training step of the [LEN] token


def load_with_adapters(source: str, targets: Sequence[str], weights: dict[str, npt.NDArray[Any]]) -> LanguageModel:
    """Return a new copy of the model with adapters on these projections; the adapters get trained `weights`, if any."""
    loaded = LanguageModel(source)
    config = LoraConfig(
        r=RANK, lora_alpha=2 * RANK, lora_dropout=0.0, target_modules=list(targets), task_type="CAUSAL_LM"
    )
    with warnings.catch_warnings():  # peft 0.21 reads an attribute that transformers 5.23 calls deprecated
        warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing", category=FutureWarning)
        loaded.model = get_peft_model(loaded.model, config)
    if weights:
        tensors = {name: torch.from_numpy(np.array(values)) for name, values in weights.items()}
        set_peft_model_state_dict(loaded.model, tensors)
    return loaded


def tune(
    language_model: LanguageModel, examples: Sequence[tuple[str, str]], *, epochs: int, rate: float | None, batch: int
) -> None:
    """Train the adapters to write each example's second text after its first."""
    model, tokenizer = language_model.model, language_model.tokenizer

    def loss(rows: npt.NDArray[np.int64]) -> Any:
        ids, labels, mask = _padded(tokenizer, [examples[i] for i in rows])
        return model(input_ids=ids, attention_mask=mask, labels=labels).loss

    _train(model, _optimizer(model, rate), loss, len(examples), epochs, batch)


def tune_len_token(
    language_model: LanguageModel, texts: Sequence[str], bins: Sequence[int], *, epochs: int, rate: float | None
) -> dict[str, npt.NDArray[Any]]:
    """Train adapters, the token's embedding and a classifier of its state together; return their weights by name."""
    model, width = language_model.model, language_model.model.config.hidden_size
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        head = torch.nn.Linear(width, max(bins) + 1)
    known = model.get_input_embeddings().weight.detach().float()
    token = torch.nn.Parameter(known.mean(0))  # begins as the mean of all tokens' embeddings
    optimizer = _optimizer(model, rate, [token, *head.parameters()])
    targets = torch.tensor(list(bins))

    def loss(rows: npt.NDArray[np.int64]) -> Any:
        states = _len_token_states(language_model, [texts[i] for i in rows], token)
        return torch.nn.functional.cross_entropy(head(states), targets[rows.tolist()])

    _train(model, optimizer, loss, len(texts), epochs, TUNED_BATCH)
    arrays = {"token": token, "weight": head.weight, "bias": head.bias}
    return adapter_weights(model) | {name: each.detach().numpy() for name, each in arrays.items()}


@torch.inference_mode()
def len_token_states(
    language_model: LanguageModel, texts: Sequence[str], token: npt.NDArray[np.float32]
) -> npt.NDArray[np.float32]:
    """Return the last hidden state of the token behind each text, (texts, hidden size)."""
    embedding = torch.from_numpy(np.array(token))
    batches = [texts[first : first + BATCH] for first in range(0, len(texts), BATCH)]
    return np.concatenate([_len_token_states(language_model, batch, embedding).numpy() for batch in batches])


def _len_token_states(language_model: LanguageModel, texts: Sequence[str], token: torch.Tensor) -> torch.Tensor:
    model, batch = language_model.model, language_model.encode(texts)
    embedded = model.get_input_embeddings()(batch["input_ids"])
    rows = len(texts)
    embedded = torch.cat([embedded, token.to(embedded.dtype).expand(rows, 1, -1)], dim=1)
    mask = torch.cat([batch["attention_mask"], batch["attention_mask"].new_ones(rows, 1)], dim=1)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    states = model(inputs_embeds=embedded, attention_mask=mask, position_ids=positions, output_hidden_states=True)
    last: torch.Tensor = states.hidden_states[-1][:, -1].float()
    return last


def _optimizer(model: Any, rate: float | None, further: Sequence[torch.nn.Parameter] = ()) -> torch.optim.Optimizer:
    """Return an optimizer of the adapters and the `further` parameters; small models need larger default rates."""
    relative_size = sum(p.numel() for p in model.parameters()) / PAPER_PARAMETERS
    default = min(MOST_RATE, PAPER_RATE / math.sqrt(relative_size))
    return torch.optim.AdamW([*(p for p in model.parameters() if p.requires_grad), *further], lr=rate or default)


def _train(
    model: Any,
    optimizer: torch.optim.Optimizer,
    loss: Callable[[npt.NDArray[np.int64]], Any],
    examples: int,
    epochs: int,
    batch: int,
) -> None:
    """Minimise `loss`, a function of the indices of a batch's examples."""
    rng = np.random.default_rng(0)
    model.train()
    for _ in range(epochs):
        for rows in np.array_split(rng.permutation(examples), max(1, examples // batch)):
            loss(rows).backward()
            optimizer.step()
            optimizer.zero_grad()
    model.eval()


def _padded(tokenizer: Any, examples: Sequence[tuple[str, str]]) -> tuple[torch.Tensor, ...]:
    """Return ids, labels and mask of prompt + answer + end token, padded on the right; the prompt has no labels."""
    ids, labels = [], []
    for prompt, answer in examples:
        before = tokenizer(prompt)["input_ids"]
        after = [*tokenizer(answer, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
        ids.append(torch.tensor(before + after))
        labels.append(torch.tensor([IGNORED] * len(before) + after))
    padded = ((ids, tokenizer.pad_token_id), (labels, IGNORED), ([torch.ones_like(row) for row in ids], 0))
    return tuple(pad_sequence(rows, batch_first=True, padding_value=value) for rows, value in padded)


def adapter_weights(model: PeftModel) -> dict[str, npt.NDArray[Any]]:
    """Return the adapters' weights by name."""
    return {name: w.detach().float().numpy() for name, w in get_peft_model_state_dict(model).items()}
