"""Memory of the KV cache: Magnus Eq. (1) and (5), SCLS Eq. (5)-(9)."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KvMemory:
    """Θ, the bytes that a worker's KV cache may fill, and Δ, the bytes of one token.

    Raises ValueError if Θ is negative or Δ is not positive.
    """

    theta_bytes: int
    delta_bytes: int

    def __post_init__(self) -> None:
        if self.theta_bytes < 0 or self.delta_bytes < 1:
            raise ValueError(
                f"Θ must not be negative and Δ must be positive, got {self.theta_bytes} and {self.delta_bytes}"
            )

    @property
    def capacity_tokens(self) -> int:
        """Tokens that fit at once, padding included."""
        return self.theta_bytes // self.delta_bytes

    def batch_bytes(self, size: int, length: int, generation_length: int) -> int:
        """Magnus Eq. (5): every row holds the batch length and the batch generation length."""
        return size * (length + generation_length) * self.delta_bytes

    def fits(self, size: int, length: int, generation_length: int) -> bool:
        """Whether such a batch stays within Θ."""
        return self.batch_bytes(size, length, generation_length) <= self.theta_bytes

    def fixed_batch_size(self, max_length: int, max_generation_length: int) -> int:
        """Magnus Eq. (1): ⌊Θ / ((Lmax + Gmax)·Δ)⌋, at least one."""
        return max(1, self.theta_bytes // ((max_length + max_generation_length) * self.delta_bytes))
