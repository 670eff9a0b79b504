"""Makes grammars of JSON formats with llguidance; the web process checks the grammar that a worker's engine will use.

Imports no torch.
"""

from llguidance import LLMatcher, LLParserLimits

from inference.sequences import JsonFormat

ANY_OBJECT = '{"type": "object"}'
# One way to write each value, as Python's json.dumps does: a model cannot fill its answer with blanks. Overrides what a
# client's own schema says in `x-guidance`.
STYLE = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False, "lenient": False}
# Bounds the cost of a schema to about 1.5 ms for each token. Ordinary schemas take 0.02 to 0.06 ms on average with a
# vocabulary of 49,152, and no less with half of it. Building a grammar takes 1 to 13 ms. Not tuned otherwise.
LIMITS = LLParserLimits(step_lexer_fuel=20_000, max_grammar_size=100_000, verbose_errors=False)


def grammar_of(format: JsonFormat) -> str:
    """Returns the format's grammar in llguidance's form; raises ValueError for a schema that is not JSON."""
    return LLMatcher.grammar_from_json_schema(format.schema or ANY_OBJECT, overrides=STYLE)  # type: ignore[arg-type]


def problem_of(format: JsonFormat) -> str | None:
    """Returns why answers cannot be constrained to this format, None if they can."""
    try:
        problem = LLMatcher.validate_grammar(grammar_of(format), limits=LIMITS)
    except ValueError as error:
        problem = str(error)
    return None if not problem or problem.startswith("WARNING") else problem.partition("\n")[0]
