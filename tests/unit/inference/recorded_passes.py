"""An engine whose forward passes are noted, for tests of how rows join."""

from dataclasses import replace

import torch

from inference.engine_requests import DecodingRequest
from inference.local.engine import Engine
from inference.local.engine_options import EngineOptions
from tests.unit.inference.tiny_models import AMPLE

PIECE = 8


class Recorded:
    """A decoder that notes the shape of the tokens of each forward pass."""

    def __init__(self, decoder, fails_at=()):
        self.decoder, self.passes, self.fails_at = decoder, [], fails_at

    def __call__(self, tokens, **options):
        self.passes.append(tuple(tokens.shape))
        if len(self.passes) in self.fails_at:
            raise torch.OutOfMemoryError("the device has no more")
        return self.decoder(tokens, **options)


def recorded_engine(known, budget_bytes=AMPLE, **options):
    """An engine with a pool, in which the first answer of `known` runs; returns it and its recorded decoder."""
    decoder = Recorded(known.loaded.decoder, **options)
    of_model = {} if known.loaded.fused else {"model": decoder}  # a model without a pass of its own is its decoder
    loaded = replace(known.loaded, decoder=decoder, **of_model)
    engine = Engine(loaded, budget_bytes, EngineOptions(block_tokens=4, prefill_tokens=PIECE))
    engine.insert([known.pool[0].sequence("running")])
    engine.step()
    decoder.passes.clear()
    return engine, decoder


def long_row(name, tokens=5 * PIECE + 1, limit=3, **options):
    return DecodingRequest(name, tuple(9 + n % 40 for n in range(tokens)), limit, **options)


def alone(known, sequence):
    return Engine(known.loaded, AMPLE).run([sequence])[0][0]
