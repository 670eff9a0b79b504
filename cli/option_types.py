"""A type of options whose value is a list, such as `--rates 2,4`."""

from typing import Any

import click


class CommaSeparated(click.ParamType[list[Any]]):
    """An option type for lists such as `1,2,3`, whose parts have a type, for example `float` or a `click.Choice`."""

    name = "list"

    def __init__(self, kind: Any = str) -> None:
        self._kind = click.types.convert_type(kind)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Split the text and convert its parts; raises click.BadParameter if a part is not of the type."""
        if not isinstance(value, str):
            return value
        return [self._kind.convert(part, param, ctx) for part in value.split(",") if part]
