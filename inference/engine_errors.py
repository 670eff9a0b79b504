"""What can go wrong while an engine serves a batch, with who can act on it.

The first line of an error's docstring is its message; the names in braces are the error's attributes.
"""


class InferenceError(Exception):
    """an engine failed"""

    def __init__(self) -> None:
        message = (type(self).__doc__ or "").partition("\n")[0]
        super().__init__(message.format_map(vars(self)))


class OutOfMemory(InferenceError):
    """out of memory: the KV cache needs {needed_bytes} bytes, the budget is {budget_bytes}

    The planner splits the batch (Magnus III-C); the engine stays usable.
    """

    def __init__(self, needed_bytes: int, budget_bytes: int) -> None:
        self.needed_bytes, self.budget_bytes = needed_bytes, budget_bytes
        super().__init__()


class SequenceTooLong(InferenceError):
    """sequence {sequence_id}: {length} tokens, the model has {max_positions} positions

    No position is left for a generated token; the caller must shorten the prompt.
    """

    def __init__(self, sequence_id: str, length: int, max_positions: int) -> None:
        self.sequence_id, self.length, self.max_positions = sequence_id, length, max_positions
        super().__init__()


class UnsupportedModel(InferenceError):
    """{name} cannot be served: {reason}

    The engine would compute wrong answers with this model; the operator must choose another one.
    """

    def __init__(self, name: str, reason: str) -> None:
        self.name, self.reason = name, reason
        super().__init__()


class QuantizationUnavailable(InferenceError):
    """cannot load the model in {quantize}: {reason}

    MAGNUS_QUANTIZE needs a CUDA device and bitsandbytes; the operator must provide both or unset it.
    """

    def __init__(self, quantize: str, reason: str) -> None:
        self.quantize, self.reason = quantize, reason
        super().__init__()


class UnreadableBudget(InferenceError):
    """{configured} is no size of a KV cache; write for example 20GiB

    The operator must correct MAGNUS_KV_BUDGET.
    """

    def __init__(self, configured: str) -> None:
        self.configured = configured
        super().__init__()


class BudgetTooSmall(InferenceError):
    """a KV cache of {budget_bytes} bytes holds no row: {row_tokens} tokens of {token_bytes} bytes need {needed_bytes}

    The operator must raise MAGNUS_KV_BUDGET, or free memory of the device.
    """

    def __init__(self, budget_bytes: int, row_tokens: int, token_bytes: int) -> None:
        self.budget_bytes, self.row_tokens, self.token_bytes = budget_bytes, row_tokens, token_bytes
        self.needed_bytes = row_tokens * token_bytes
        super().__init__()


class BudgetTooLarge(InferenceError):
    """a KV cache of {budget_bytes} bytes is more than the {memory_bytes} bytes of {device}

    The cache takes its budget whole; the operator must lower MAGNUS_KV_BUDGET.
    """

    def __init__(self, budget_bytes: int, memory_bytes: int, device: str) -> None:
        self.budget_bytes, self.memory_bytes, self.device = budget_bytes, memory_bytes, device
        super().__init__()


class UnreadableTokenizer(InferenceError):
    """cannot read the tokenizer of {model}: {reason}

    The model needs a readable tokenizer.json; the operator must choose another model.
    """

    def __init__(self, model: str, reason: str) -> None:
        self.model, self.reason = model, reason
        super().__init__()
