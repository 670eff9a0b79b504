"""The stream of an answer that may call functions: its text up to where the calls begin."""

from collections.abc import Iterator

from inference.tool_calls import may_begin_calls
from webapp.streaming.answer_stream import AnswerStream
from webapp.tools.tool_answers import answer_parts


def text_before_calls(stream: AnswerStream) -> Iterator[str]:
    """Pieces of text, an empty one where nothing came for a while; what may be a call is held back until the end."""
    sent = stream.sent_characters
    text = "." * sent  # a client that comes back has read it: no call
    for piece in stream.pieces():
        text += piece
        upto = may_begin_calls(text)
        ready = text[sent:upto]
        sent += len(ready)
        if ready or not piece:
            yield ready
    rest = "" if stream.left else answer_parts(stream.view).text[sent:]
    if rest:
        yield rest
