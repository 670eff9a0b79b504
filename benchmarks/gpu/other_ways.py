"""What else a card serves: vectors of texts, adapters in a batch, float16, int8 weights."""

from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from time import perf_counter

import torch
from tokenizers import Tokenizer
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from benchmarks.engines.bandwidth_floor import seconds_of, step_s
from benchmarks.gpu.enlarged_models import made_model
from benchmarks.gpu.phase_plan import Part, Terms
from benchmarks.gpu.written_adapters import write_adapters
from benchmarks.harness import Json
from inference.embedding.model_loading import load_encode
from inference.embedding.text_model import read_text_model
from inference.local.loading.checkpoint import Quantize
from inference.local.loading.model_loading import LoadedModel, load_model
from inference.toy.toy_applications import toy_requests
from settings import BUNDLED_MODEL

ROWS, SMALL_ROWS = (1, 16, 64), (1, 4)
ADAPTERS = tuple(f"adapter-{number}" for number in range(4))
ADAPTER_RANK = 16
# MiniLM-L6: layers, hidden and intermediate size, heads, the most tokens of a text.
LAYERS, HIDDEN, INTERMEDIATE, HEADS, TEXT_TOKENS = 6, 384, 1536, 12, 512
TEXTS = (1, 32, 256)  # in a pass


def parts(terms: Terms) -> Iterator[Part]:
    """Measure texts a second, and a decoding step in each way."""
    rows = SMALL_ROWS if terms.small else ROWS
    encoder = cache(lambda: load_encode(read_text_model("minilm", str(random_minilm(terms.work))), terms.device))
    for count in TEXTS[: 2 if terms.small else None]:
        yield f"vectors of {count} texts", lambda count=count: vectors(encoder(), count)  # type: ignore[misc]
    model = cache(lambda: made_model("1b", terms))
    base = cache(lambda: load_with_adapters(model(), terms))
    for used in (0, 1, 4):
        names = ADAPTERS[:used] or ("",)
        yield f"steps with {used} adapters", lambda names=names: steps(base(), rows, names)  # type: ignore[misc]
    kinds: dict[str, tuple[str, Quantize | None]] = {"float16": ("float16", None)}
    if not terms.small:  # bitsandbytes computes on CUDA alone
        kinds["int8 weights"] = "auto", "8bit"
    for name, (dtype, quantize) in kinds.items():
        load = partial(load_model, device=terms.device, dtype=dtype, quantize=quantize)
        yield f"steps in {name}", lambda load=load: steps(load(str(model())), rows)  # type: ignore[misc]


def random_minilm(work: Path) -> Path:
    """Write a text model of MiniLM's shape with random weights and the bundled model's tokenizer."""
    directory = work / "minilm"
    torch.manual_seed(0)
    tokenizer = Tokenizer.from_file(str(BUNDLED_MODEL / "tokenizer.json"))
    config = BertConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=INTERMEDIATE,
        max_position_embeddings=TEXT_TOKENS,
    )
    BertModel(config).save_pretrained(directory)
    padding = {"pad_token": tokenizer.id_to_token(0)}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=TEXT_TOKENS, **padding).save_pretrained(
        directory
    )
    return directory


def vectors(encode: Callable[[list[str]], object], count: int) -> Json:
    """Measure the vectors of texts of about sixty words in one pass."""
    texts = [request.input for request in toy_requests(count, seed=1, median_words=60.0)]
    _, *took = seconds_of(lambda: encode(texts), 4)  # the first one warms up
    return {"texts_per_s": count / min(took)}


def load_with_adapters(directory: Path, terms: Terms) -> LoadedModel:
    """Load the model with random adapters of ADAPTER_RANK beside it."""
    adapters = write_adapters(directory, terms.work / "four-adapters", ADAPTERS, ADAPTER_RANK)
    return load_model(str(directory), terms.device, adapters=str(adapters))


def steps(loaded: LoadedModel, rows: tuple[int, ...], adapters: tuple[str, ...] = ("",)) -> Json:
    """Measure a decoding step with each number of rows, which share the adapters."""
    took = {str(one): 1000 * step_s(loaded, one, perf_counter, adapters=adapters) for one in rows}
    return {"step_ms_by_rows": took, "slowed_by": loaded.slowed_by}
