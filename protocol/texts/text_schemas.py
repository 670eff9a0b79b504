"""Bodies of /v1/embeddings, /v1/rerank and /v1/score, as the clients of OpenAI, Cohere, Jina and vLLM send them."""

from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from protocol.field_types import TEXT_OR_LIST, Body, HistoryBody, Metadata, Text
from protocol.limits.text_limits import MOST_TEXTS
from protocol.requests.client_prompt import kind_of_prompt
from protocol.requests.options import AskedTier
from protocol.responses.response_schemas import QueueExtras

SomeText = Annotated[Text, Field(min_length=1)]
SomeTexts = Annotated[list[SomeText], Field(min_length=1, max_length=MOST_TEXTS)]


def kind_of_input(value: object) -> str | None:
    """Returns the tag of a text or of texts; token ids have none."""
    kind = kind_of_prompt(value)
    return kind if kind in ("<text>", "<texts>") else None


EmbeddingInput = Annotated[
    Annotated[SomeText, Tag("<text>")] | Annotated[SomeTexts, Tag("<texts>")],
    Discriminator(
        kind_of_input,
        custom_error_type="input",
        custom_error_message="must be a text or a list of texts, and not be empty. Token ids are refused, because "
        "those of OpenAI's tokenizers mean other words here: in LangChain set check_embedding_ctx_length=False",
    ),
]
TextOrTexts = Annotated[Annotated[SomeText, Tag("<text>")] | Annotated[SomeTexts, Tag("<list>")], TEXT_OR_LIST]


class TextFields(HistoryBody):
    """The fields that all three calls have."""

    model: Text = Field(description="Name of a model for this call, see /v1/models")
    truncate: bool | None = Field(
        default=None, description="true: the model reads the beginning of a text that is too long for it"
    )
    truncation: bool | None = Field(default=None, description="As `truncate`")
    input_type: Annotated[Text, Field(max_length=64)] | None = Field(default=None, description="Accepted, not used")
    task: Annotated[Text, Field(max_length=64)] | None = Field(default=None, description="Accepted, not used")
    user: Annotated[Text, Field(max_length=512)] | None = None
    metadata: Metadata | None = Field(default=None, description="`application` names the kind of request")
    service_tier: AskedTier = None
    magnus: QueueExtras = Field(default=QueueExtras(), description="Fields that only Magnus has")


class CreateEmbeddings(TextFields):
    """POST /v1/embeddings."""

    input: EmbeddingInput = Field(description=f"A text, or up to {MOST_TEXTS:,} texts")
    encoding_format: Literal["float", "base64"] | None = Field(
        default=None, description="base64: of little-endian float32; float, the default: numbers"
    )
    dimensions: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="Accepted where it is the number that the model has"
    )
    normalized: Literal[True] | None = Field(default=None, description="Accepted where it is true")

    @property
    def texts(self) -> list[str]:
        """Returns the texts as a list."""
        return [self.input] if isinstance(self.input, str) else self.input


class DocumentText(Body):
    """A document as an object."""

    text: SomeText


def kind_of_document(value: Any) -> str | None:
    """Returns the tag of a document, so that an error names the field and not both forms."""
    return "<text>" if isinstance(value, str) else "<object>" if isinstance(value, dict | DocumentText) else None


RankedText = Annotated[
    Annotated[SomeText, Tag("<text>")] | Annotated[DocumentText, Tag("<object>")],
    Discriminator(
        kind_of_document, custom_error_type="document", custom_error_message="must be a text or an object with a text"
    ),
]


class CreateRerank(TextFields):
    """POST /v1/rerank."""

    query: SomeText
    documents: Annotated[list[RankedText], Field(min_length=1, max_length=MOST_TEXTS)]
    top_n: Annotated[int, Field(ge=1)] | None = Field(default=None, description="Only the best so many documents")
    max_tokens_per_doc: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="As `truncate`: the model reads as much of a document as it can"
    )
    return_documents: bool | None = Field(default=None, description="false: the answer has no texts")

    @property
    def texts(self) -> list[str]:
        """Returns the documents as texts."""
        return [one if isinstance(one, str) else one.text for one in self.documents]


class CreateScore(TextFields):
    """POST /v1/score."""

    text_1: TextOrTexts = Field(description="One text for all of `text_2`, or one for each of them")
    text_2: TextOrTexts

    @property
    def pairs(self) -> tuple[list[str], list[str]]:
        """Returns both sides of the pairs; the first may be a single text for all."""
        first, second = ([one] if isinstance(one, str) else one for one in (self.text_1, self.text_2))
        return first, second

    @model_validator(mode="after")
    def refuse_unequal_sides(self) -> Self:
        """Refuses several first texts unless there are as many second texts."""
        first, second = self.pairs
        if len(first) not in (1, len(second)):
            raise ValueError(f"text_1 has one text or as many as text_2, but {len(first)} and {len(second)} were sent")
        return self
