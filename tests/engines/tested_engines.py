"""The engines that have to behave alike: ours, and the servers of others behind the same interface, on one model."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

from benchmarks.inputs.changed_models import make_endless_model
from benchmarks.outside_engines.server_processes import EngineKind, EngineServer, ServerTerms, running_engine
from inference.engine_requests import DecodingRequest, FinishedRow
from inference.local.engine import Engine
from inference.local.loading.model_loading import LoadedModel, load_model
from inference.prompts.prompt_format import PromptFormat, load_prompt_format
from inference.remote.remote_engine import RemoteEngine
from inference.remote.server_probe import connect
from inference.serving_engine import ServingEngine
from inference.toy.toy_applications import toy_requests
from settings import BUNDLED_MODEL
from tests.engines.stub_answers import AnsweringStub

# Engines that compute in this process, made of a model and the bytes of its KV cache. One a line, as
# docs/adding-an-engine.md adds another.
ENGINES: dict[str, Callable[[LoadedModel, int], ServingEngine]] = {
    "ours": Engine,
}
SERVERS: tuple[EngineKind, ...] = get_args(EngineKind)
KINDS = (*ENGINES, "stub", *SERVERS)
REQUESTS, SEED = 200, 5
LIMIT = 200  # tokens of an answer: the longest of the bundled model's has about 130
KV_BYTES = 2**28  # more than all rows of a test need
KV_TOKENS = 32768  # the same for a server
NICE = 5  # gives servers a third of a test's share of the CPUs: a server that spins took all of them for seconds
TERMS = ServerTerms(BUNDLED_MODEL, kv_tokens=KV_TOKENS, threads=1, nice=NICE)


@dataclass(frozen=True)
class EngineUnderTest:
    """An engine, what it is called, and the server behind it."""

    kind: str
    engine: ServingEngine
    prompts: PromptFormat
    server: EngineServer | None

    @property
    def own_sampling(self) -> bool:
        """Whether each row has its own temperature and seed."""
        return not isinstance(self.engine, RemoteEngine) or self.engine.server.capabilities.own_sampling

    @property
    def takes_ids(self) -> bool:
        """Whether prompts go in as token ids."""
        return not isinstance(self.engine, RemoteEngine) or self.engine.server.capabilities.token_ids_in

    @property
    def ignores_eos(self) -> bool:
        """Whether a row can ignore EOS and go on to its limit."""
        return not isinstance(self.engine, RemoteEngine) or "ignore_eos" in self.engine.server.capabilities.options

    def sequence(self, id: str, instructions: str, input: str, limit: int = LIMIT, **options: Any) -> DecodingRequest:
        """A row as a worker makes it: the prompt as token ids and as turns."""
        turns = (("system", instructions), ("user", input))
        return DecodingRequest(id, tuple(self.prompts.encode(instructions, input)), limit, turns=turns, **options)

    def toy_sequences(self, requests: int = REQUESTS, **options: Any) -> list[DecodingRequest]:
        """Rows with requests of all six toy applications."""
        return [
            self.sequence(str(n), toy.instruction, toy.input, **options)
            for n, toy in enumerate(toy_requests(requests, SEED, median_words=12.0))
        ]

    def text(self, row: FinishedRow) -> str:
        """The answer as a client gets it."""
        return self.prompts.decode(row.generated_ids) if row.text is None else row.text

    def drain(self, rows: Sequence[DecodingRequest] = ()) -> dict[str, FinishedRow]:
        """Inserts these rows and steps until no row is left; returns the rows that ended, by id."""
        self.engine.insert(rows)
        ended: dict[str, FinishedRow] = {}
        while self.engine.rows:
            ended |= {row.id: row for row in self.engine.step()}
        return ended

    def preempted(self, id: str) -> DecodingRequest | None:
        """Preempts a row; returns what remains of it, or None if it ended while this process got no CPU."""
        try:
            taken: DecodingRequest = self.engine.preempt(id)
            return taken
        except KeyError:
            return None

    def until_tokens(self, tokens: int, ids: Sequence[str]) -> dict[str, FinishedRow]:
        """Steps until each of these rows has `tokens` tokens or has ended; returns the rows that ended."""
        ended: dict[str, FinishedRow] = {}
        while any(self.engine.rows.get(one, tokens) < tokens for one in ids):
            ended |= {row.id: row for row in self.engine.step()}
        return ended


@contextmanager
def engine_under_test(kind: str, directory: Path, terms: ServerTerms = TERMS) -> Iterator[EngineUnderTest]:
    """The engine of this kind over the bundled model, or over that of other terms."""
    prompts = load_prompt_format(str(terms.model))
    if kind in ENGINES:
        engine_here = ENGINES[kind](load_model(str(terms.model), dtype="float32"), KV_BYTES)
        yield EngineUnderTest(kind, engine_here, prompts, None)
        return
    if kind == "stub":
        stub = AnsweringStub(Engine(load_model(str(terms.model), dtype="float32"), KV_BYTES))
        try:
            with connected(stub.url, terms.model) as engine:
                yield EngineUnderTest(kind, engine, prompts, None)
        finally:
            stub.die()
        return
    (server_kind,) = (one for one in SERVERS if one == kind)
    with running_engine(server_kind, terms, directory) as server, connected(server.url, terms.model) as engine:
        yield EngineUnderTest(kind, engine, prompts, server)


@contextmanager
def connected(url: str, model: Path) -> Iterator[RemoteEngine]:
    """Our engine in front of the server at this address, which serves this model."""
    engine = RemoteEngine(connect(url), load_prompt_format(str(model)).detokenizer)
    try:
        yield engine
    finally:
        engine.close()


def endless_terms(directory: Path) -> ServerTerms:
    """Terms with a model whose rows run to their limits."""
    return replace(TERMS, model=make_endless_model(directory), name="endless", kv_tokens=8 * KV_TOKENS)
