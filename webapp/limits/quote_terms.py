"""The operator's terms of quotes, and the signature by which an accepted offer is known to be one of this service."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from itsdangerous import BadData, URLSafeSerializer
from pydantic import BaseModel, ConfigDict, ValidationError

from models.promise_tables import Promise
from scheduling.request import ServiceTier


class SignedOffer(BaseModel):
    """What an offer's id carries, so that nothing is stored until the offer is accepted; `body` is a digest."""

    model_config = ConfigDict(frozen=True)

    tenant: str
    body: str
    tier: ServiceTier
    promise: Promise
    expires_at: float


@dataclass(frozen=True, slots=True)
class QuoteTerms:
    """Prices of a GPU-second by tier (none if empty), how long an offer holds, and the least chance of a deadline.

    With `public` everybody may read the promise book.
    """

    tier_prices: Mapping[str, float]
    valid_s: float
    min_deadline_chance: float
    public: bool
    secret: Callable[[], str]

    def price(self, tier: ServiceTier, gpu_s: float | None) -> float | None:
        """Returns the price of this work in a tier; None without prices, or if the work is unknown."""
        if gpu_s is None or not self.tier_prices:
            return None
        return float(f"{self.tier_prices[tier] * gpu_s:.6g}")

    def sign(self, offer: SignedOffer) -> str:
        """Returns the offer as a text that only this service can make."""
        return str(self._serializer().dumps(offer.model_dump(mode="json")))

    def read(self, signed: str) -> SignedOffer | None:
        """Returns the offer of a text that `sign` made; None for any other text."""
        try:
            return SignedOffer.model_validate(self._serializer().loads(signed))
        except (BadData, ValidationError):
            return None

    def _serializer(self) -> URLSafeSerializer:
        return URLSafeSerializer(self.secret(), salt="magnus.quote")
