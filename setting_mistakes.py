"""What a process says of settings that are wrong, before it ends."""

import sys
from typing import NoReturn

from pydantic import ValidationError

from settings import PREFIX, Settings, UnknownSetting, read_settings


def problems_of(error: ValidationError | UnknownSetting) -> list[str]:
    """Returns the problems, a line for each setting, without values that may contain a password."""
    if isinstance(error, UnknownSetting):
        return [str(error)]
    lines = []
    for problem in error.errors(include_url=False, include_context=False):
        setting, parameters = problem["loc"][:1], problem["loc"][1:]
        name = " ".join([PREFIX + str(setting[0]).upper(), *map(str, parameters)]) if setting else None
        reason = problem["msg"].removeprefix("Value error, ")
        if problem["type"] == "extra_forbidden":
            reason = "there is no such parameter; `magnus settings` lists every one"
        secret = name is None or name.endswith(("_URL", "_ISSUER", "_KEY", "_PASSWORD", "_SECRET"))
        shown = "" if secret else f" (it is {problem['input']!r})"
        lines.append(f"{name}: {reason}{shown}" if name else reason)
    return lines


def end_with(*lines: str, status: int = 1) -> NoReturn:
    """End this process with these lines on standard error, each behind `magnus: `: an operator needs no traceback."""
    sys.stderr.write("".join(f"magnus: {line}\n" for line in lines))
    sys.exit(status)


def settings_or_end() -> Settings:
    """Returns the environment's settings; ends the process with the reason if one is wrong."""
    try:
        return read_settings()
    except (UnknownSetting, ValidationError) as error:
        end_with(*problems_of(error))
