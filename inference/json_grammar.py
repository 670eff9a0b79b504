"""Makes grammars of JSON formats with llguidance; the web process checks the grammar that a worker's engine will use.

A grammar is compiled in a process of its own before any other process compiles it, because some take minutes in one
native call. LIMITS bounds llguidance's work for a token; of a hundred hostile schemas, none took more than 30 ms for a
token. Imports no torch.
"""

import json
import random
from collections.abc import Callable
from time import process_time, thread_time
from typing import NamedTuple

from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance.gbnf_to_lark import any_to_lark

from inference.answer_endings import AnswerEndings
from inference.client_schemas import exceeded_bound
from inference.engine_errors import TooExpensive
from inference.engine_requests import JsonFormat
from inference.isolated_calls import IsolatedCalls
from request_body import PLAIN, AnswerForm

ANY_OBJECT = '{"type": "object"}'
# Each value can be written in one way only, that of Python's json.dumps, so that a model cannot fill its answer with
# blanks. This overrides `x-guidance` in a client's schema.
STYLE = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False, "lenient": False}
# Bounds of the cost of a token. With a vocabulary of 49,152 tokens, ordinary schemas take 0.02 to 0.06 ms a token on
# average, and would do so with half of these bounds. Not tuned otherwise.
LIMITS = LLParserLimits(
    step_lexer_fuel=20_000,
    step_max_items=10_000,
    max_lexer_states=50_000,
    max_grammar_size=100_000,
    verbose_errors=False,
)
COMPILED_WITHIN_S = 0.3  # CPU time; ordinary schemas take 1 to 13 ms, 60 KB of required names 50. Not tuned otherwise
# A check that has taken less than this CPU time looks for the shortest answer, for as long: a search takes 1 to 30 ms,
# and all of this time where a pattern leaves many choices. Not tuned otherwise.
SHORTEST_WITHIN_S = 0.05
TRIED_TOKENS = 64  # a check generates this many tokens: enough for a schema's first values. Not tuned otherwise
MOST_VERDICTS = 256  # this many verdicts are remembered, each with a format of at most 64 KiB; not tuned


def grammar_of(format: JsonFormat) -> str:
    """Returns the format's grammar in llguidance's form; raises ValueError for one that cannot be read."""
    if format.grammar is not None:
        return LLMatcher.grammar_from_lark(_lark(format.grammar))
    if format.pattern is not None:
        return LLMatcher.grammar_from_regex(format.pattern)
    return LLMatcher.grammar_from_json_schema(format.schema or ANY_OBJECT, overrides=STYLE)  # type: ignore[arg-type]


def _lark(grammar: str) -> str:
    if "%json" in grammar:
        raise ValueError("it has %json, whose schema belongs into a format of its own")
    try:
        return any_to_lark(grammar)
    except Exception as error:  # the reader of GBNF raises plain ones
        raise ValueError(f"it is neither Lark nor GBNF: {error}") from error


def compiled(format: JsonFormat, vocabulary: LLTokenizer) -> LLMatcher:
    """Returns the matcher of an answer; the caller must check its `is_error`. May take minutes: see FormatChecks."""
    grammar = grammar_of(format)
    if format.answer_form != PLAIN:
        (answer,) = json.loads(grammar)["grammars"]
        thinking = {"lark_grammar": thinking_grammar(format.answer_form, vocabulary)}
        grammar = json.dumps({"grammars": [thinking, answer | {"name": "answer"}]})
    return LLMatcher(vocabulary, grammar, log_level=0, limits=LIMITS)


def thinking_grammar(form: AnswerForm, vocabulary: LLTokenizer) -> str:
    """Returns a grammar, in llguidance's form of Lark: any thinking in this form, and behind it an `@answer`."""

    def mark(text: str) -> str:
        ids = vocabulary.tokenize_str(text)
        return f"<[{ids[0]}]>" if len(ids) == 1 and vocabulary.is_special_token(ids[0]) else json.dumps(text)

    def until(text: str) -> str:
        if mark(text).startswith("<"):  # this mark is a special token, which no text contains
            return f"thought: ANY {mark(text)}\nANY: /(?s:.*)/\n"
        return f"thought[suffix={mark(text)}]: /(?s:.*)/\n"

    if form.channels:
        message = mark("<|message|>")
        begin = f'{mark("<|channel|>")} "analysis" {message} thought {mark("<|start|>")} "assistant"'
        json_mark = f'" "? {mark("<|constrain|>")} "json"'
        end = f'{mark("<|channel|>")} "final" ({json_mark})? {message}'
        return f"start: ({begin})* {end} @answer\n{until('<|end|>')}"
    thinking = "thought GAP" if form.opened else f"({mark(form.opening)} thought GAP)?"
    return f"start: {thinking} @answer\nGAP: /\\n{{0,2}}/\n{until(form.closing)}"


class FormatVerdict(NamedTuple):
    """The result of a format's check."""

    problem: str | None = None  # why answers cannot be held to the format
    shortest_tokens: int | None = None  # the tokens of the shortest answer that was found


class FormatChecks:
    """Checks whether answers can be held to a format, each time in a separate process, and remembers the verdicts.

    `tokenizer` is a tokenizer.json as text; without it, single bytes serve as tokens.
    """

    def __init__(self, tokenizer: str = "", vocabulary_size: int | None = None, eos_id: int | None = None) -> None:
        self._calls = IsolatedCalls(f"{__name__}:checker", json.dumps([tokenizer, vocabulary_size, eos_id]))
        self._verdicts: dict[JsonFormat, FormatVerdict] = {}

    def problem_of(self, format: JsonFormat, caller: str = "") -> str | None:
        """Returns why answers cannot be held to this format, None if they can; each caller has one check at a time."""
        return self._verdict(format, caller).problem

    def shortest_tokens(self, format: JsonFormat, caller: str = "") -> int | None:
        """Returns the tokens of the shortest answer that was found, None without one or without the tokens."""
        return self._verdict(format, caller).shortest_tokens

    def _verdict(self, format: JsonFormat, caller: str) -> FormatVerdict:
        if format not in self._verdicts:
            try:
                bound = _exceeded_bound(format)
                verdict = FormatVerdict(bound) if bound else self._compiled_elsewhere(format, caller)
            except TooExpensive as error:
                verdict = FormatVerdict(str(error))
            while len(self._verdicts) >= MOST_VERDICTS:
                self._verdicts.pop(next(iter(self._verdicts)), None)
            self._verdicts[format] = verdict
        return self._verdicts[format]

    def _compiled_elsewhere(self, format: JsonFormat, caller: str) -> FormatVerdict:
        given = json.dumps({"schema": format.schema, "pattern": format.pattern, "grammar": format.grammar})
        return FormatVerdict(*json.loads(self._calls.call(given, COMPILED_WITHIN_S, caller)))


def _exceeded_bound(format: JsonFormat) -> str | None:
    try:
        schema = json.loads(format.schema or ANY_OBJECT)
    except ValueError as error:
        return f"it is no JSON: {error}"
    return exceeded_bound([schema, {"pattern": format.pattern}])


def checker(given: str) -> Callable[[str], str]:
    """Returns the function that FormatChecks calls in separate processes: from a format to its verdict, as JSON."""
    tokenizer, vocabulary_size, eos_id = json.loads(given)
    try:
        vocabulary = LLTokenizer(tokenizer or "byte", n_vocab=vocabulary_size, eos_token=eos_id)
    except ValueError:  # our engine takes no formats with it, but a server may
        tokenizer, vocabulary = "", LLTokenizer("byte")
    endings = AnswerEndings(vocabulary) if tokenizer else None

    def verdict(format: str) -> str:
        began = process_time()
        try:
            matcher = compiled(JsonFormat(**json.loads(format)), vocabulary)
        except ValueError as error:
            return json.dumps([str(error)])
        tried = matcher.deep_copy()
        generate_some(tried)
        problem = tried.get_error().partition("\n")[0]
        if problem or endings is None or process_time() - began > SHORTEST_WITHIN_S:
            return json.dumps([problem or None])
        ending = endings.shortest(matcher, thread_time() + SHORTEST_WITHIN_S)
        return json.dumps([None, None if ending is None else len(ending)])

    return verdict


def generate_some(matcher: LLMatcher) -> None:
    """Generates the first tokens of an answer at random, until it ends or the matcher fails."""
    chance = random.Random(0)  # the same tokens for the same schema
    for _ in range(TRIED_TOKENS):
        allowed = bin(int.from_bytes(matcher.compute_bitmask(), "little"))[:1:-1]
        if matcher.is_error() or matcher.is_stopped():
            return
        token = allowed.find("1", chance.randrange(len(allowed)))
        matcher.consume_token(token)
        if matcher.is_error() or matcher.is_stopped():
            return
