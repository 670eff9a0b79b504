"""The tokenizer and the training batches of the bundled model; both are made from seeded toy requests."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from inference.toy.toy_applications import APPLICATIONS, MAX_WORDS, SPANISH, THEMES, draw_request

PAD, EOS, SYSTEM, USER, ASSISTANT = "<pad>", "<eos>", "<system>", "<user>", "<assistant>"
SPECIAL_TOKENS = (PAD, EOS, SYSTEM, USER, ASSISTANT)
PAD_ID, EOS_ID = SPECIAL_TOKENS.index(PAD), SPECIAL_TOKENS.index(EOS)  # special tokens come first
# Enough for bytes, special tokens, all English toy words, and merges for Spanish ones. With a larger vocabulary Spanish
# would take fewer tokens and the model would be larger. Not tuned.
VOCABULARY_SIZE = 1280
CHAT_TEMPLATE = (
    "{%- for message in messages %}{{ '<' + message['role'] + '>' + message['content'] }}"
    "{%- if message['role'] == 'assistant' %}{{ '<eos>' }}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<assistant>' }}{%- endif %}"
)


def train_tokenizer() -> Tokenizer:
    """Trains the BPE on the toy words; Spanish is rarer in its corpus, so that a Spanish word takes more tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Prepend(" ")
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    english = " ".join([*SPANISH, *THEMES, "nothing", *(toy.instruction for toy in APPLICATIONS.values())])
    tokenizer.train_from_iterator([*[english] * 10, " ".join(SPANISH.values())], trainer)
    return tokenizer


SHORT_WORDS = 10  # the longest input at first, because the model learns to copy sooner from short texts; not tuned
LONG_WORDS = MAX_WORDS + 6  # the longest input at the end, slightly longer than any request; not tuned
SHORT_UNTIL, LONG_FROM = 0.2, 0.4  # shares of training between which the longest input grows linearly; not tuned
# Weights of the applications. Harder ones are drawn more often, and so is `classify`, because its answers of one token
# are a small share of the loss.
MIX = {"repeat": 1, "translate": 2, "remove": 2, "double": 3, "summarize": 1, "classify": 2}
# The number of batches whose lessons are drawn at once and sorted by length. A larger number needs less padding; not
# tuned.
BATCHES_SORTED = 16


@dataclass(frozen=True)
class Lesson:
    """A prompt and its answer as token ids; the answer ends on EOS."""

    prompt: list[int]
    answer: list[int]

    @property
    def tokens(self) -> int:
        """The number of tokens of prompt and answer together."""
        return len(self.prompt) + len(self.answer)


def batches(tokenizer: Tokenizer, steps: int, batch_tokens: int, seed: int) -> Iterator[list[Lesson]]:
    """Yields `steps` batches of at most `batch_tokens` tokens with padding; inputs grow to full length meanwhile."""
    rng = random.Random(seed)
    step = 0
    while step < steps:
        grown = min(1.0, max(0.0, (step / steps - SHORT_UNTIL) / (LONG_FROM - SHORT_UNTIL)))
        longest = round(SHORT_WORDS + (LONG_WORDS - SHORT_WORDS) * grown)
        lessons: list[Lesson] = []
        while sum(lesson.tokens for lesson in lessons) < BATCHES_SORTED * batch_tokens:
            lessons.extend(_draw(tokenizer, longest, rng) for _ in range(64))
        grouped = _by_length(lessons, batch_tokens)
        rng.shuffle(grouped)
        yield from grouped[: steps - step]
        step += len(grouped)


def _draw(tokenizer: Tokenizer, longest: int, rng: random.Random) -> Lesson:
    (application,) = rng.choices(tuple(MIX), tuple(MIX.values()))
    request = draw_request(application, rng.randint(1, longest), rng)
    prompt = f"{SYSTEM}{request.instruction}{USER}{request.input}{ASSISTANT}"
    return Lesson(tokenizer.encode(prompt).ids, tokenizer.encode(request.output + EOS).ids)


def _by_length(lessons: list[Lesson], batch_tokens: int) -> list[list[Lesson]]:
    grouped: list[list[Lesson]] = [[]]
    for lesson in sorted(lessons, key=lambda lesson: lesson.tokens):
        if (len(grouped[-1]) + 1) * lesson.tokens > batch_tokens:
            grouped.append([])
        grouped[-1].append(lesson)
    return grouped
