"""Length prediction with the real sentence encoder: refitted, judged, stored, loaded, and better than words alone."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from learning.estimators.metrics import score
from learning.features.length_predictor import Outcome, Prompt
from learning.features.sentence_encoder import SentenceEncoder
from learning.features.text_encoders import make_encoder
from learning.predictors.forest import ForestPredictor
from learning.retraining.refit import refit
from learning.store import digest, dump, load

pytestmark = pytest.mark.timeout(300)

ANIMALS = """horse cow goat sheep pig donkey camel rabbit hamster fox wolf bear deer moose otter badger hedgehog
squirrel lion tiger leopard zebra giraffe elephant monkey gorilla panda koala kangaroo whale dolphin seal shark salmon
trout eagle falcon owl raven sparrow pigeon swan duck goose hen turkey frog toad lizard snake"""
THINGS = """hammer screwdriver wrench pliers saw drill chisel axe shovel rake hoe ladder bucket nail bolt table chair
sofa shelf cupboard drawer lamp mirror carpet curtain kettle oven fridge toaster spoon fork knife plate cup bowl bottle
jar scissors stapler pencil notebook ruler printer keyboard monitor radio telephone camera clock umbrella"""
LEARNED = 40  # words of each kind that are learned from; a fifth of them is held out by the refit


def outcomes(words: Sequence[str], length: int, first: int) -> list[Outcome]:
    """Answers of one length to a question with each of these words; no other word tells them apart."""
    prompts = [Prompt("chat", "", f"Tell me about the {word}.", 6, 12, 400) for word in words]
    return [Outcome(prompt, length, at=float(first + 2 * i)) for i, prompt in enumerate(prompts)]


def test_a_refit_with_minilm_ranks_words_that_it_never_saw(minilm: Path) -> None:
    animals, things = ANIMALS.split(), THINGS.split()
    learned = sorted(outcomes(animals[:LEARNED], 200, 0) + outcomes(things[:LEARNED], 20, 1), key=lambda o: o.at)
    unseen = outcomes(animals[LEARNED:], 200, 0) + outcomes(things[LEARNED:], 20, 0)
    lengths = [o.generated_tokens for o in unseen]
    accuracy = {}
    for encoder in ("hashing", str(minilm)):
        untrained = ForestPredictor(make_encoder(encoder))
        candidate = refit(None, untrained, learned, since=-1.0, now=100.0)
        assert candidate is not None
        stored = dump(candidate.model)
        predicted = load(stored, digest(stored)).predict([o.prompt for o in unseen])
        accuracy[encoder] = score(predicted, lengths).pair_accuracy
    assert accuracy[str(minilm)] > 0.8
    assert accuracy[str(minilm)] > accuracy["hashing"] + 0.1


def test_a_text_alone_and_among_others_has_the_same_vector(minilm: Path) -> None:
    encoder = make_encoder(str(minilm))
    texts = ["short", "A much longer sentence about the weather in the mountains.", "Another one, of middle length."]
    together, fresh = encoder.encode(texts), SentenceEncoder(str(minilm))
    alone = [fresh.encode([text])[0] for text in texts]
    for one, other in zip(together, alone, strict=True):
        assert one @ other == pytest.approx(1.0, abs=0.01)  # bfloat16
