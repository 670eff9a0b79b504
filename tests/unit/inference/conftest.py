"""Tiny models as fixtures."""

from dataclasses import replace

import pytest

from tests.unit.inference.tiny_models import EOS, MAKERS, Known, known


@pytest.fixture(params=[*sorted(MAKERS), "bundled"])
def each_model(request) -> Known:
    """A model of every architecture in turn, and the bundled one."""
    return known(request.param)


@pytest.fixture
def llama() -> Known:
    """The tiny Llama."""
    return known("llama")


def without_end(architecture: str) -> Known:
    """A tiny model without an EOS: answers end at their limits only."""
    here = known(architecture)
    pool = tuple(answered for answered in here.pool if EOS not in answered.answer)
    return replace(here, loaded=replace(here.loaded, eos_ids=frozenset()), pool=pool)


@pytest.fixture
def endless() -> Known:
    """The tiny Llama without an EOS."""
    return without_end("llama")


@pytest.fixture
def apart() -> Known:
    """A model without an EOS whose joiners are computed apart from running rows."""
    return without_end("gpt2")
