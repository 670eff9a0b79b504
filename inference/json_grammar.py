"""Grammars of JSON formats, compiled by llguidance: the web process checks what a worker's engine will hold answers to.

It imports no torch.
"""

from llguidance import LLMatcher, LLParserLimits

from inference.sequences import JsonFormat

ANY_OBJECT = '{"type": "object"}'
# One way to write each value, as Python's json.dumps has it: a model that rambles cannot fill its answer with blanks.
# Overrides what a client's own schema says in `x-guidance`.
STYLE = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False, "lenient": False}
# Bounds what one schema may cost: about 20 ms to build its lexer, and 7 ms for a token. The library's defaults allow
# 20 and 14; a schema that needs more is an attack or a mistake. Not tuned otherwise.
LIMITS = LLParserLimits(step_lexer_fuel=100_000, max_grammar_size=100_000, verbose_errors=False)


def grammar_of(format: JsonFormat) -> str:
    """The format's grammar in llguidance's form; raises ValueError for a schema that is no JSON."""
    return LLMatcher.grammar_from_json_schema(format.schema or ANY_OBJECT, overrides=STYLE)  # type: ignore[arg-type]


def problem_of(format: JsonFormat) -> str | None:
    """Why answers cannot be held to this format, None if they can."""
    try:
        problem = LLMatcher.validate_grammar(grammar_of(format), limits=LIMITS)
    except ValueError as error:
        problem = str(error)
    return None if not problem or problem.startswith("WARNING") else problem.partition("\n")[0]
