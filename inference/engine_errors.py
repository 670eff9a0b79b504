"""What can go wrong while serving a batch, split by who can act: the planner, the operator, the caller."""


class InferenceError(Exception):
    """Any error of the engines."""


class OutOfMemory(InferenceError):
    """The KV cache does not fit; the engine stays usable and the planner splits the batch (Magnus III-C)."""

    def __init__(self, needed_bytes: int, budget_bytes: int) -> None:
        self.needed_bytes, self.budget_bytes = needed_bytes, budget_bytes
        super().__init__(f"out of memory: the KV cache needs {needed_bytes} bytes, the budget is {budget_bytes}")


class SequenceTooLong(InferenceError):
    """A prompt leaves the model no position for a single token; the caller must shorten it."""

    def __init__(self, sequence_id: str, length: int, max_positions: int) -> None:
        self.sequence_id, self.length, self.max_positions = sequence_id, length, max_positions
        super().__init__(f"sequence {sequence_id}: {length} tokens, the model has {max_positions} positions")


class UnsupportedModel(InferenceError):
    """A model that the engines would serve wrongly; the operator must choose another."""

    def __init__(self, name: str, reason: str) -> None:
        self.name, self.reason = name, reason
        super().__init__(f"{name} cannot be served: {reason}")


class QuantizationUnavailable(InferenceError):
    """MAGNUS_QUANTIZE asks for what this machine cannot do; the operator must install it or unset it."""

    def __init__(self, quantize: str, reason: str) -> None:
        self.quantize, self.reason = quantize, reason
        super().__init__(f"cannot load the model in {quantize}: {reason}")


class UnreadableBudget(InferenceError):
    """MAGNUS_KV_BUDGET is no size; the operator must write one."""

    def __init__(self, configured: str) -> None:
        self.configured = configured
        super().__init__(f"{configured} is no size of a KV cache; write for example 20GiB")
