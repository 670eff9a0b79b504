"""Refuses calls for vectors and scores by their model, and by the number and the lengths of their texts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from inference.embedding.text_model import TextModel, read_text_model
from inference.engine_errors import TooExpensive
from processes.cpu_turns import others_turn
from protocol.client_errors import InvalidRequest, NotFound
from settings import Settings

MOST_TEXTS = 2048  # texts of a call: OpenAI's bound of `input`
MOST_CALL_TOKENS = 300_000  # tokens of a call: OpenAI's bound
# Most values of a call's vectors, such as 2,048 for each of 2,048 texts. As base64 they take 22 MB in the database.
MOST_VALUES = 2**22
MOST_NUMBERS = 2**20  # the same for a call that wants JSON numbers, which take 20 bytes each. Not tuned
# A text of more characters than this for each token that may be read is refused, or cut off, without being tokenized.
# Any value above the vocabulary's longest token works: no vocabulary in use has tokens of 256 characters.
MAX_CHARACTERS_PER_TOKEN = 256
TOO_LONG = "context_length_exceeded"  # clients recognize by this code that a text must be shortened


@dataclass(frozen=True, slots=True)
class CallTexts:
    """A call's texts as the model will read them: their names in the call, and which of them are queries."""

    texts: Sequence[str]
    names: Sequence[str]
    queries: int = 0


@dataclass(frozen=True, slots=True)
class TextLimits:
    """The models for vectors and scores, by the names that clients send."""

    models: Mapping[str, TextModel] = field(default_factory=dict)

    def find(self, name: str, *, scores: bool) -> TextModel:
        """Returns the model; raises NotFound, or InvalidRequest if it gives scores alone and a vector is wanted."""
        model = self.models.get(name)
        if model is None:
            known = [one.name for one in self.models.values() if scores or not one.scores_pairs]
            able = f"models that do: {', '.join(known)}" if known else "no model here does"
            wanted = "scores" if scores else "embeddings"
            raise NotFound(
                f"The model '{name[:200]}' computes no {wanted}, or does not exist; {able}.",
                param="model",
                code="model_not_found",
            )
        if model.scores_pairs and not scores:
            raise InvalidRequest(
                f"The model '{name}' scores pairs of texts: use /v1/rerank or /v1/score.",
                param="model",
                code="unsupported_value",
            )
        return model

    def refuse_chats(self, name: str) -> None:
        """Raises InvalidRequest if a call that wants a generated answer names one of these models."""
        model = self.models.get(name)
        if model is not None:
            calls = "/v1/rerank or /v1/score" if model.scores_pairs else "/v1/embeddings"
            raise InvalidRequest(
                f"The model '{name}' generates no answers: use {calls}.", param="model", code="unsupported_value"
            )


def checked_texts(model: TextModel, call: CallTexts, *, truncate: bool, tenant: str) -> tuple[list[str], list[int]]:
    """Returns the texts to store and the tokens that the model reads of each of them, or of each pair.

    Raises InvalidRequest for a text or a pair that is too long, unless the client lets the model `truncate` it, and for
    too many tokens in all. A text that is cut off is also shortened here, far behind what the model reads.
    """
    most_characters = MAX_CHARACTERS_PER_TOKEN * model.max_tokens
    for text, name in zip(call.texts, call.names, strict=True):
        if len(text) > most_characters and not truncate:
            raise _too_long(model, f"{len(text):,} characters", name)
    texts = [text[:most_characters] for text in call.texts]
    try:
        with others_turn():
            tokens = model.item_tokens(texts, call.queries, tenant)
    except TooExpensive as error:
        raise InvalidRequest(
            f"Your texts are expensive to encode: {error}. Please send fewer or shorter ones.",
            param=call.names[0],
            code=TOO_LONG,
        ) from error
    names = call.names[-len(tokens) :]
    if not truncate:
        for length, name in zip(tokens, names, strict=True):
            if length > model.max_tokens:
                raise _too_long(model, f"{length:,} tokens", name)
    read = [max(1, min(length, model.max_tokens)) for length in tokens]  # a blank text may have no token
    if sum(read) > MOST_CALL_TOKENS:
        raise InvalidRequest(
            f"A call has at most {MOST_CALL_TOKENS:,} tokens in all its texts, but yours has {sum(read):,}. "
            "Please send fewer texts.",
            param=names[0].partition("[")[0],
            code=TOO_LONG,
        )
    return texts, read


def check_values(model: TextModel, vectors: int, *, as_numbers: bool) -> None:
    """Raises InvalidRequest if the vectors of a call have too many values together."""
    values = vectors * (model.dimensions or 0)
    most = MOST_NUMBERS if as_numbers else MOST_VALUES
    if values > most:
        remedy = "or ask for encoding_format base64" if as_numbers and values <= MOST_VALUES else "in several calls"
        form = " as numbers" if as_numbers else ""
        raise InvalidRequest(
            f"These vectors have {values:,} values, but an answer has at most {most:,}{form}. Please send fewer texts, "
            f"{remedy}.",
            param="input",
        )


def text_limits_of(settings: Settings) -> TextLimits:
    """Returns the limits of the models of the settings; raises UnreadableModel."""
    return TextLimits({name: read_text_model(name, directory) for name, directory in settings.text_models.items()})


def _too_long(model: TextModel, length: str, name: str) -> InvalidRequest:
    kind = "a query with its document" if model.scores_pairs else "a text"
    return InvalidRequest(
        f"This model reads at most {model.max_tokens:,} tokens of {kind}, but '{name}' has {length}. Please shorten "
        "it, or send `truncate: true` for its beginning alone.",
        param=name,
        code=TOO_LONG,
    )
