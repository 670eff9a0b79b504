"""Calls of functions and their results as items of a response's input; what an answer called can be sent back."""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Tag

from request_body import StoredCall
from webapp.field_types import Body, Text
from webapp.tools.tool_schemas import Arguments, CallId, ToolName

ItemStatus = Literal["in_progress", "completed", "incomplete"]


class FunctionCallItem(Body):
    """A call in an earlier answer."""

    type: Literal["function_call"]
    call_id: CallId
    name: ToolName
    arguments: Arguments
    id: Text | None = None
    status: ItemStatus | None = None

    @property
    def stored(self) -> StoredCall:
        """As the request's row keeps it."""
        return StoredCall(id=self.call_id, name=self.name, arguments=self.arguments)


class OutputPart(Body):
    """A piece of a result's text."""

    type: Literal["input_text", "output_text"]
    text: Text


def text_or_parts(value: object) -> str | None:
    """The tag of the union's branch that a result belongs to."""
    return "<text>" if isinstance(value, str) else "<list>" if isinstance(value, list) else None


class FunctionOutputItem(Body):
    """The result of a call."""

    type: Literal["function_call_output"]
    call_id: CallId
    output: Annotated[
        Annotated[Text, Tag("<text>")] | Annotated[list[OutputPart], Tag("<list>")],
        Discriminator(text_or_parts, custom_error_type="text_or_list", custom_error_message="must be a text or a list"),
    ]
    id: Text | None = None
    status: ItemStatus | None = None

    @property
    def text(self) -> str:
        """The result as one string."""
        return self.output if isinstance(self.output, str) else "".join(part.text for part in self.output)


def kind_of_item(value: Any) -> str | None:
    """The tag of the union's branch that an item belongs to; one without a type is a message."""
    kind = value.get("type", "message") if isinstance(value, dict) else getattr(value, "type", None)
    return f"<{kind}>" if kind in ("message", "function_call", "function_call_output") else None


ITEM = Discriminator(
    kind_of_item,
    custom_error_type="item",
    custom_error_message="must be of type message, function_call or function_call_output",
)
