"""Types of options: a list, such as `--rates 2,4`, and a budget, such as `--budget 50price/month`."""

import re
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


class Budget(click.ParamType[dict[str, Any] | str]):
    """GPU-seconds or a price, such as `3600gpu_s`; of a tenant in a period, `2.50price/day`, or `default` for none."""

    def __init__(self, *, of_tenant: bool = False) -> None:
        self.name = "AMOUNTgpu_s/day|AMOUNTprice/month|default" if of_tenant else "AMOUNTgpu_s|AMOUNTprice"
        self._of_tenant = of_tenant

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, Any] | str:
        """Parse the budget; raises click.BadParameter for any other text."""
        if value == "default" and self._of_tenant:
            return "default"
        period = "/(?P<period>day|month)" if self._of_tenant else ""
        found = re.fullmatch(rf"(?P<amount>\d+(\.\d+)?) ?(?P<unit>gpu_s|price){period}", str(value), re.ASCII)
        if found is None or not 0 < float(found["amount"]) < float("inf"):
            self.fail(f"{value!r} is none of {self.name}")
        return found.groupdict() | {"amount": float(found["amount"])}
