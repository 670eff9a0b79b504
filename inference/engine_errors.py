"""The errors of an engine that loads a model or serves a batch, each with the person or part that can act on it.

The first line of an error's docstring is its message; the names in braces are the error's attributes.
"""

from dataclasses import dataclass


class InferenceError(Exception):
    """an engine failed"""

    def __str__(self) -> str:
        return (type(self).__doc__ or "").partition("\n")[0].format_map(vars(self))


@dataclass(eq=False)
class OutOfMemory(InferenceError):
    """out of memory: the KV cache needs {needed_bytes} bytes, the budget is {budget_bytes}

    The planner splits the batch (Magnus III-C); the engine stays usable.
    """

    needed_bytes: int
    budget_bytes: int

    @property
    def of_device(self) -> bool:
        """Whether the device has no memory left within the budget; the engine has then lost the keys of all rows."""
        return self.needed_bytes <= self.budget_bytes


@dataclass(eq=False)
class RowTooLong(InferenceError):
    """sequence {sequence_id}: {length} tokens, the model has {max_positions} positions

    No position is left for a generated token; the caller must shorten the prompt.
    """

    sequence_id: str
    length: int
    max_positions: int


@dataclass(eq=False)
class UnsupportedModel(InferenceError):
    """{name} cannot be served: {reason}

    The engine would compute wrong answers with this model; the operator must choose another one.
    """

    name: str
    reason: str


@dataclass(eq=False)
class ShownByLoading(InferenceError):
    """whether and how {name} is served shows once it is loaded: {reason}

    Nobody has to act: the model does not run without its weights' data, but this does not tell how it runs with them.
    """

    name: str
    reason: str


@dataclass(eq=False)
class QuantizationUnavailable(InferenceError):
    """cannot load the model in {quantize}: {reason}

    MAGNUS_QUANTIZE needs a CUDA device and bitsandbytes; the operator must provide both or unset it.
    """

    quantize: str
    reason: str


@dataclass(eq=False)
class UnreadableBudget(InferenceError):
    """{configured} is no size of a KV cache; write for example 20GiB

    The operator must correct MAGNUS_KV_BUDGET.
    """

    configured: str


@dataclass(eq=False)
class BudgetTooSmall(InferenceError):
    """a KV cache of {budget_bytes} bytes holds no row: {row_tokens} tokens of {token_bytes} bytes need {needed_bytes}

    The operator must raise MAGNUS_KV_BUDGET, or free memory of the device.
    """

    budget_bytes: int
    row_tokens: int
    token_bytes: int

    def __post_init__(self) -> None:
        self.needed_bytes = self.row_tokens * self.token_bytes


@dataclass(eq=False)
class BudgetTooLarge(InferenceError):
    """a KV cache of {budget_bytes} bytes is more than the {memory_bytes} bytes of {device}

    The cache allocates its whole budget at once; the operator must lower MAGNUS_KV_BUDGET.
    """

    budget_bytes: int
    memory_bytes: int
    device: str


@dataclass(eq=False)
class UnreadableModel(InferenceError):
    """cannot read {model}: {reason}

    A file of the model is missing or damaged; the operator must choose another model.
    """

    model: str
    reason: str


@dataclass(eq=False)
class TooExpensive(InferenceError):
    """it takes more than {cpu_s:g} s of CPU time, or too much memory

    The client must send something simpler.
    """

    cpu_s: float


class TokenizerAway(Exception):
    """the tokenizer does not answer ({reason}); nothing can be counted or checked until it does"""

    def __init__(self, reason: str) -> None:
        super().__init__((type(self).__doc__ or "").format(reason=reason))
