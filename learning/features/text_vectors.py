"""The inputs of linear models: a text's hashed words and byte sequences, its intent, and an encoder's vector."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.utils import murmurhash3_32

from learning.features.intent_features import INTENT_VALUES, intent_features
from learning.features.length_predictor import Prompt, group_key
from learning.features.text_encoders import HASHING, Encoder, Vectors
from scheduling.costs import Floats, Ints

WORD_VALUES = 2048  # hash buckets of words and pairs of words: fewer collide more, more cost memory and time; not tuned
BYTE_BITS = 13  # with 12, tau on code comments was 0.01 lower, with 14 0.01 higher at twice the size
BYTE_VALUES = 2**BYTE_BITS
DIMENSION = WORD_VALUES + BYTE_VALUES + INTENT_VALUES
BYTE_LENGTHS = (4, 5)  # sequences of 4 and 5 bytes catch stems, code identifiers and languages without spaces
MOST_CHARACTERS = 2048  # only the beginning of a longer text is read; 1,024 or 4,096 changed no RMSE by 1 %
# The primes of xxHash32, which are odd and whose bits are well spread.
MULTIPLIERS = np.array([0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F, 0x165667B1], np.uint32)

_words_of = HashingVectorizer(ngram_range=(1, 2)).build_analyzer()


def hash_texts(texts: Sequence[str], further_words: Sequence[str] | None = None) -> csr_array:
    """Return a row for each text, (texts, DIMENSION): words and byte sequences, each of unit length, and its intent.

    `further_words` has a word for each text, which counts as one of the text's own words. The matrix is built by hand:
    for five short texts, the libraries' transforming and stacking took four fifths of the time.
    """
    columns: list[Ints] = []
    values: list[npt.NDArray[np.floating]] = []
    ends = [0]
    for number, text in enumerate(texts):
        head = text[:MOST_CHARACTERS].lower()
        intent = intent_features(head)
        asked = np.flatnonzero(intent)
        if further_words:
            head = f"{head} {further_words[number]}"
        # the hash buckets of scikit-learn's HashingVectorizer
        buckets = [abs(murmurhash3_32(word)) % WORD_VALUES for word in set(_words_of(head))]
        words, (sequences, signs) = np.unique(np.array(buckets, np.int64)), _byte_sequences(head)
        columns += [words, WORD_VALUES + sequences, WORD_VALUES + BYTE_VALUES + asked]
        values += [np.full(len(words), 1 / np.sqrt(max(1, len(words)))), signs, intent[asked]]
        ends.append(ends[-1] + len(words) + len(sequences) + len(asked))
    entries = np.concatenate(values).astype(np.float32), np.concatenate(columns).astype(np.int32), np.array(ends)
    return csr_array(entries, shape=(len(texts), DIMENSION))


def rarity_weights(texts: csr_array) -> Floats:
    """Return the logarithmic inverse document frequency of each column, (columns,), so that rare words weigh more.

    The weights of words, and those of byte sequences, keep the rows' mean squared length. Intent features weigh 1.
    """
    weights = np.ones(texts.shape[1])
    counts = np.bincount(texts.indices, minlength=texts.shape[1])
    squares = np.bincount(texts.indices, texts.data**2, minlength=texts.shape[1])
    for part in (slice(0, WORD_VALUES), slice(WORD_VALUES, WORD_VALUES + BYTE_VALUES)):
        rare = 1 + np.log((1 + texts.shape[0]) / (1 + counts[part]))
        scale = squares[part].sum() / max(1e-9, (squares[part] * rare**2).sum())
        weights[part] = rare * np.sqrt(scale)
    return weights


def _byte_sequences(text: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """Return columns and values of one text: the sign of each hash bucket's signed count, scaled to unit length."""
    raw = np.frombuffer(f" {text} ".encode("utf-8", "replace"), np.uint8).astype(np.uint32) + 1
    hashes = [np.zeros(0, np.uint32)]
    for length in BYTE_LENGTHS:
        count = len(raw) - length + 1
        if count > 0:
            h = np.full(count, length, np.uint32)
            for offset in range(length):
                h = (h ^ raw[offset : offset + count]) * MULTIPLIERS[offset]
                h ^= h >> np.uint32(15)
            hashes.append(h)
    h = np.concatenate(hashes)
    signs = np.where(h & np.uint32(1), 1.0, -1.0)
    counts = np.bincount(h >> np.uint32(32 - BYTE_BITS), signs, minlength=BYTE_VALUES)
    columns = np.flatnonzero(counts)
    return columns, (np.sign(counts[columns]) / np.sqrt(max(1, len(columns)))).astype(np.float32)


@dataclass(frozen=True, slots=True)
class TextVectors:
    """Vectors, a row for each text; with the hashing encoder, which reads the same words, `encoded` has no columns."""

    hashed: csr_array  # (texts, DIMENSION)
    encoded: Vectors  # (texts, the encoder's dimension), of unit length

    def __getitem__(self, rows: npt.NDArray[np.int64]) -> "TextVectors":
        return TextVectors(csr_array(self.hashed[rows]), self.encoded[rows])


def read_texts(prompts: Sequence[Prompt], encoder: Encoder, wanted: npt.NDArray[np.bool_]) -> TextVectors:
    """Return vectors of these prompts' inputs; only `wanted` ones go through the encoder, the others get 0 there.

    The application counts as a word, so that it has its own weight even with too few answers for its own model.
    """
    texts = [prompt.input for prompt in prompts]
    hashed = hash_texts(texts, [group_key(prompt.application) for prompt in prompts])
    if encoder.name == HASHING:
        return TextVectors(hashed, np.zeros((len(texts), 0), np.float32))
    encoded = np.zeros((len(texts), encoder.dimension), np.float32)
    encoded[wanted] = encoder.encode([text for text, want in zip(texts, wanted, strict=True) if want])
    return TextVectors(hashed, encoded)
