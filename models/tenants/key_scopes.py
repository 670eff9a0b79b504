"""What a key may do: each route of the API needs one of these."""

import enum


class Scope(enum.StrEnum):
    """submit: make and change what is the tenant's; read: see it; operate: see what is of the whole service.

    On the dashboard, where pages need `operate`, submit lets a key act on the whole service, and read see every text.
    """

    submit = "submit"
    read = "read"
    operate = "operate"


DEFAULT_SCOPES = frozenset({Scope.submit, Scope.read})  # what every key could do before there were scopes
