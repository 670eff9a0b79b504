"""The rate limit of each API key, counted in this process's memory."""

import time

from apiflask import APIBlueprint, APIFlask
from flask import Response
from flask_limiter import Limiter, RateLimitExceeded

from webapp.auth import api_key
from webapp.errors import answer_known


def limit(app: APIFlask, apis: list[APIBlueprint], rate: str) -> None:
    """Let each key send `rate`, say 100/second, to these blueprints; what is above it hears when to come back."""
    limiter = Limiter(lambda: str(api_key().id), app=app, storage_uri="memory://")
    shared = limiter.shared_limit(rate, scope="key")
    for api in apis:
        shared(api)

    @app.errorhandler(RateLimitExceeded)
    def too_many(error: RateLimitExceeded) -> Response:
        answer = answer_known(error)
        hit = limiter.current_limit
        answer.headers["Retry-After"] = str(max(1, round(hit.reset_at - time.time())) if hit else 1)
        return answer
