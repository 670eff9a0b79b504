"""Right: each way of serving gives the answers of `generate` alone in float32; in bfloat16 the share of equal ones."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import takewhile
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.engines.compared_engines import Continuous
from benchmarks.engines.engine_workload import model_of
from benchmarks.engines.shared_prefixes import served
from benchmarks.gpu.enlarged_models import made_model, toy_prompts
from benchmarks.gpu.phase_plan import Part, Terms
from benchmarks.gpu.written_adapters import adapted, write_adapters
from benchmarks.harness import Json
from inference.accelerator import has_own_memory
from inference.engine_requests import DecodingRequest
from inference.local.engine import Engine
from inference.local.engine_options import EngineOptions
from inference.local.guessed_tokens import Guessing
from inference.local.loading.model_loading import LoadedModel, load_model
from inference.prompts.prompt_format import load_prompt_format
from inference.toy.toy_applications import toy_requests
from settings import BUNDLED_MODEL
from tests.models.ways_of_serving import AMPLE, WAYS, Alone, Answers, Way, answers_alone, continuous
from tests.unit.inference.tiny_models import drain

PROMPTS, ANSWER = 8, 32  # eight is the most rows that get guesses; longer answers would find no other fault
DTYPES = ("float32", "bfloat16")
ADAPTERS = ("first", "second")
# Engine memory in the live phases' terms: rows of Eq. (1), the most tokens of a prompt and of an answer. All of nine
# rows of the longest toy texts fit into it.
EQUATION_ROWS, MOST_TOKENS, SATURATING_ROWS, SATURATING = 7, 128, 9, 200


def with_shared_prefixes(loaded: LoadedModel, sequences: list[DecodingRequest]) -> Answers:
    """Four rows at once share beginnings of their prompts."""
    _, rows = served(loaded, sequences, 4, True, perf_counter)
    return {name: row.generated_ids for name, row in rows.items()}


def with_guesses(loaded: LoadedModel, sequences: list[DecodingRequest]) -> Answers:
    """Passes verify guesses of the next tokens."""
    engine = Engine(loaded, AMPLE * loaded.delta_bytes, EngineOptions(guessing=Guessing(8)))
    engine.insert(sequences)
    return {name: row.generated_ids for name, row in drain(engine).items()}


EVERY_WAY: tuple[Way, ...] = (*WAYS, with_shared_prefixes, with_guesses)


def parts(terms: Terms) -> Iterator[Part]:
    """Serve the same prompts in each way and data type, with adapters, and measure how much the engine serves."""
    tried = _Tried(terms)
    for dtype in DTYPES:
        yield f"{dtype}: model", partial(tried.facts, dtype)
        for way in EVERY_WAY:
            yield f"{dtype}: {way.__name__}", partial(tried.served_by, dtype, way)
        yield f"{dtype}: two_adapters", partial(tried.with_adapters, dtype)
    yield "the bundled model's answers", tried.beside_bundled
    yield "saturation", tried.saturation


@dataclass
class _Tried:
    """An enlarged model in each data type, loaded when it is first needed."""

    terms: Terms
    _loaded: dict[str, LoadedModel] = field(default_factory=dict)

    @cached_property
    def directory(self) -> Path:
        return made_model("1b" if self.terms.variant == "1b" else "7b", self.terms)

    @cached_property
    def adapters(self) -> Path:
        return write_adapters(self.directory, self.terms.work / f"adapters-{self.directory.name}", ADAPTERS)

    def loaded(self, dtype: str) -> LoadedModel:
        if dtype not in self._loaded:
            self._loaded[dtype] = load_model(str(self.directory), self.terms.device, dtype, adapters=str(self.adapters))
        return self._loaded[dtype]

    @cached_property
    def plain(self) -> Any:
        """The model with `generate`; a CPU's engine packs the weights of its own."""
        whole = self.loaded("float32").model
        return whole if has_own_memory(whole.device) else model_of(self.directory, "cpu", "float32")

    @cached_property
    def alone(self) -> list[Alone]:
        return answers_alone(self.plain, toy_prompts(PROMPTS), ANSWER)

    @cached_property
    def alone_adapted(self) -> dict[str, list[Alone]]:
        found = {}
        for name in ADAPTERS:
            with adapted(self.plain, self.adapters / name):
                found[name] = answers_alone(self.plain, toy_prompts(PROMPTS // 2), ANSWER)
        return found

    def facts(self, dtype: str) -> Json:
        loaded = self.loaded(dtype)
        return {"parameters": loaded.parameters, "by_pages": loaded.by_pages, "slowed_by": loaded.slowed_by}

    def served_by(self, dtype: str, way: Way, asked: Sequence[tuple[str, Alone]] = ()) -> Json:
        """Compare the answers to (adapter, prompt) by this way with those of `generate`; no answer ends."""
        asked = asked or [("", one) for one in self.alone]
        sequences = [
            DecodingRequest(str(n), one.prompt_ids, ANSWER, adapter=name) for n, (name, one) in enumerate(asked)
        ]
        answers = way(replace(self.loaded(dtype), eos_ids=frozenset()), sequences)
        return compared([answers[str(n)] for n in range(len(asked))], [one.answer for _, one in asked])

    def with_adapters(self, dtype: str) -> Json:
        """Serve rows of both adapters and of none together."""
        of_adapters = [(name, one) for name in ADAPTERS for one in self.alone_adapted[name]]
        beside = [*self.alone[: PROMPTS // 2]] * len(ADAPTERS)
        changed = sum(one.answer != base.answer for (_, one), base in zip(of_adapters, beside, strict=True))
        found = self.served_by(dtype, continuous, [*of_adapters, *(("", one) for one in self.alone)])
        return found | {"changed_by_adapters": changed}

    def beside_bundled(self) -> Json:
        """Compare `generate` of both models: bfloat16 rounds the enlarged one's weights."""
        bundled = answers_alone(model_of(BUNDLED_MODEL, "cpu", "float32"), toy_prompts(PROMPTS), ANSWER)
        return compared([one.answer for one in self.alone], [one.answer for one in bundled])

    def saturation(self) -> Json:
        """Serve long toy texts, whose answers the model ends, in the memory of the live phases."""
        loaded, encode = self.loaded("bfloat16"), load_prompt_format(str(BUNDLED_MODEL)).encode
        sequences = [
            DecodingRequest(str(n), tuple(encode(one.instruction, one.input)), MOST_TOKENS)
            for n, one in enumerate(toy_requests(20 if self.terms.small else SATURATING, seed=3, median_words=60.0))
        ]
        engine, began = Continuous(loaded, EQUATION_ROWS * 2 * MOST_TOKENS * loaded.delta_bytes), perf_counter()
        run = engine.serve(sequences, SATURATING_ROWS)
        seconds, tokens = perf_counter() - began, sum(map(len, run.answers.values()))
        return {"requests_per_s": len(sequences) / seconds, "tokens_per_s": tokens / seconds, "tokens": tokens}


def compared(answers: Sequence[tuple[int, ...]], expected: Sequence[tuple[int, ...]]) -> Json:
    """Count equal answers, and the tokens before each answer's first difference; expected ones may be shorter."""
    equal = [ours[: len(theirs)] == theirs for ours, theirs in zip(answers, expected, strict=True)]
    alike = [
        len([*takewhile(lambda pair: pair[0] == pair[1], zip(ours, theirs, strict=False))])
        for ours, theirs in zip(answers, expected, strict=True)
    ]
    tokens = sum(map(len, expected))
    return {"equal": sum(equal), "of": len(equal), "tokens": tokens, "equal_tokens": sum(alike) / tokens}
