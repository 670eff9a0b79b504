"""Groups of prompts, and what each group's models predict."""

import numpy as np

from learning.estimators.application_models import FEWEST_ANSWERS, ApplicationModels, fit_application_models
from learning.features.length_predictor import Outcome, Prompt, group_key
from learning.features.text_vectors import TextVectors, hash_texts
from tests.unit.learning.made_up_lengths import outcomes, prompt, wordy_outcomes


def vectors(texts: list[str], encoded: np.ndarray | None = None) -> TextVectors:
    return TextVectors(hash_texts(texts), np.zeros((len(texts), 0), np.float32) if encoded is None else encoded)


def fitted(learned: list[Outcome], encoded: np.ndarray | None = None) -> tuple[ApplicationModels, np.ndarray]:
    prompts = [o.prompt for o in learned]
    lengths = np.array([o.generated_tokens for o in learned], np.float64)
    return fit_application_models(prompts, lengths, vectors([p.input for p in prompts], encoded))


def test_an_application_with_enough_answers_is_a_group_and_all_others_share_group_0() -> None:
    models, _ = fitted(
        [*outcomes(FEWEST_ANSWERS, application="known"), *outcomes(FEWEST_ANSWERS - 1, application="rare")]
    )
    assert models.keys.tolist() == ["", group_key("known")]
    assert models.groups([prompt("known"), prompt("rare"), prompt("unseen")]).tolist() == [1, 0, 0]


def test_an_instruction_with_enough_answers_is_a_group_where_its_application_has_several() -> None:
    def asked(instruction: str, text: str) -> Prompt:
        return Prompt("chat", instruction, text, 5, 8, 100)

    learned = [Outcome(asked("Explain:", f"a {i}"), 50) for i in range(40)]
    learned += [Outcome(asked("Name:", f"b {i}"), 5) for i in range(10)]
    models, _ = fitted(learned)
    assert set(models.keys) == {"", group_key("chat"), group_key("chat", "Explain:")}
    explain, name = models.groups([asked("Explain:", "x"), asked("Name:", "x")])
    assert models.keys[explain] == group_key("chat", "Explain:")
    assert models.keys[name] == group_key("chat")


def test_text_scores_tell_a_story_from_a_name() -> None:
    models, left_out = fitted(wordy_outcomes(200))
    groups = models.groups([prompt("chat"), prompt("chat")])
    story, name = models.text_scores(groups, vectors(["story about rivers", "name of a river"]))
    assert story > 0 > name
    assert left_out[::2].mean() > 0 > left_out[1::2].mean()  # stories and names alternate


def test_a_group_reads_the_encoders_vectors_only_where_they_say_more_than_its_words() -> None:
    rng = np.random.default_rng(0)
    told, untold = rng.normal(size=(2, 100, 4)).astype(np.float32)
    told /= np.linalg.norm(told, axis=1, keepdims=True)
    untold /= np.linalg.norm(untold, axis=1, keepdims=True)
    learned = [Outcome(prompt("told", 5, f"text {i}"), round(100 + 80 * float(told[i, 0]))) for i in range(100)]
    learned += outcomes(100, application="untold", noise=20.0)
    models, _ = fitted(learned, np.concatenate([told, untold]))
    groups = models.groups([prompt("told"), prompt("untold")])
    assert models.read_encoded(groups).tolist() == [True, False]
    long, short = np.array([[1, 0, 0, 0], [-1, 0, 0, 0]], np.float32)
    scores = models.text_scores(groups[[0, 0]], vectors(["text", "text"], np.stack([long, short])))
    assert scores[0] > 0 > scores[1]
