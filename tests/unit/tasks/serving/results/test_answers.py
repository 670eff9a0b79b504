"""Log probabilities of exactly the tokens that an answer's text is made of, wherever it was interrupted or cut."""

import pytest

from inference.answer_text import cut_at_stop
from inference.engine_requests import FinishedRow, FinishReason, TokenLogprob
from inference.prompts.prompt_format import load_prompt_format
from models.leasing.leases import Lease
from models.tables import RequestStatus
from request_body import PLAIN, AnswerForm
from settings import BUNDLED_MODEL
from tasks.serving.results.answers import logprobs_of_text, packed, shown, stored_answer, unpacked
from tasks.serving.results.engine_events import RowEnded, RowFailed

PROMPTS = load_prompt_format(str(BUNDLED_MODEL))
EOS = 1


def ended(text: str, reason: FinishReason) -> FinishedRow:
    ids = (*PROMPTS.encode("", text)[1:-1], *([EOS] if reason == "eos" else []))
    return FinishedRow("a", ids, reason, logprobs=tuple(TokenLogprob(one, -float(n)) for n, one in enumerate(ids)))


@pytest.mark.parametrize("reason", ["eos", "limit", "removed"])
def test_of_a_whole_answer_all_but_the_end_of_sequence_are_kept(reason: FinishReason) -> None:
    row = ended("tree river naïve 🙂", reason)
    assert len(logprobs_of_text(row, "tree river naïve 🙂", PROMPTS.decode)) == len(row.generated_ids) - (
        reason == "eos"
    )


@pytest.mark.parametrize("end", [(), (EOS,)])
def test_an_answer_that_was_led_to_its_end_is_complete_with_or_without_the_end_of_sequence(
    end: tuple[int, ...],
) -> None:
    row = ended("tree", "landed")
    logprobs = tuple(TokenLogprob(one, -1.0) for one in (*row.generated_ids, *end))
    led = FinishedRow("a", (*row.generated_ids, *end), "landed", logprobs=logprobs)
    stored = stored_answer(RowEnded(LEASE, led, (), 0.0, with_logprobs=True), 0.0, PROMPTS)
    assert (stored.status, stored.text, stored.reason) == (RequestStatus.completed, "tree", "landed")
    assert stored.logprobs is not None
    assert len(stored.logprobs) == len(row.generated_ids)


@pytest.mark.parametrize("stop", ["river", "ver", "tree", "ee", "🙂", " n", "tree river naïve 🙂"])
def test_what_a_stop_string_cut_off_has_none(stop: str) -> None:
    row = ended("tree river naïve 🙂", "stop")
    text = cut_at_stop(PROMPTS.decode(row.generated_ids), (stop,))
    kept = [one.id for one in logprobs_of_text(row, text, PROMPTS.decode)]
    assert tuple(kept) == row.generated_ids[: len(kept)]
    assert PROMPTS.decode(kept).startswith(text)
    assert not kept or not PROMPTS.decode(kept[:-1]).startswith(text)  # each of them is needed


def test_the_api_shows_texts_and_bytes_of_tokens() -> None:
    (tree, *_) = PROMPTS.encode("", "tree")[1:-1]
    (entry,) = shown([TokenLogprob(tree, -0.5, ((tree, -0.5), (EOS, -1.0)))], PROMPTS.token_bytes)
    assert entry["top_logprobs"][1] == {"token": "<eos>", "logprob": -1.0, "bytes": list(b"<eos>")}
    assert (entry["token"].strip(), entry["logprob"]) == ("tree", -0.5)
    assert bytes(entry["bytes"]).decode() == entry["token"]


@pytest.mark.parametrize(("reason", "found"), [("stop", "river"), ("eos", None)])
def test_an_answer_is_stored_with_the_stop_string_that_ended_it(reason: FinishReason, found: str | None) -> None:
    event = RowEnded(LEASE, ended("tree river naïve 🙂", reason), ("naïve", "river"), 0.0)
    assert stored_answer(event, 0.0, PROMPTS).stop_string == found


THINK = AnswerForm(opening="<think>", closing="</think>")
LEASE = Lease(1, 1)


def reasoning_tokens_of(row: FinishedRow, form: AnswerForm) -> int | None:
    return stored_answer(RowEnded(LEASE, row, (), 0.0, answer_form=form), 0.0, PROMPTS).reasoning_tokens


@pytest.mark.parametrize("reason", ["eos", "limit", "removed"])
@pytest.mark.parametrize(
    ("thinking", "said"),
    [
        ("<think>tree naïve 🙂</think>", "\n\nriver"),
        ("<think>tree</think>", ""),
        ("<think>tree naïve", ""),
        ("", "river"),
        ("", "<think>\n</think>river"),
    ],
)
def test_tokens_of_thinking_are_counted_by_their_ids(thinking: str, said: str, reason: FinishReason) -> None:
    row = ended(thinking + said, reason)
    counted = reasoning_tokens_of(row, THINK)
    assert counted is not None
    assert PROMPTS.decode(row.generated_ids[:counted]).startswith(thinking)
    assert not counted or len(PROMPTS.decode(row.generated_ids[: counted - 1])) < len(thinking)


def test_thinking_without_ids_is_counted_as_text() -> None:
    text = "<think>tree</think>river"
    known = FinishedRow("a", (), "eos", text=text, text_tokens=90)
    assert reasoning_tokens_of(known, THINK) == PROMPTS.count("<think>tree</think>")
    few = FinishedRow("a", (), "eos", text=text, text_tokens=2)
    assert reasoning_tokens_of(few, THINK) == 2


def test_a_model_without_tags_has_no_number_of_tokens_of_thinking() -> None:
    assert reasoning_tokens_of(ended("<think>tree</think>", "eos"), PLAIN) is None


def test_a_nul_is_never_shown() -> None:
    (entry,) = shown([TokenLogprob(5, 0.0)], lambda _: b"a\0\xff")
    assert (entry["token"], entry["bytes"]) == ("a\ufffd\ufffd", [97, 0, 255])


def test_what_waits_again_is_read_as_it_was_packed() -> None:
    known = (TokenLogprob(7, -0.25, ((7, -0.25), (9, -2.0))), TokenLogprob(8, 0.0))
    assert unpacked(packed(known)) == known


def test_what_a_model_or_a_server_wrote_is_stored_as_valid_unicode_without_nul() -> None:
    row = FinishedRow("a", (), "eos", text="a\ud83d\0b", text_tokens=3)
    assert stored_answer(RowEnded(LEASE, row, (), 0.0), 0.0, PROMPTS).text == "a\ufffd\ufffdb"
    failed = stored_answer(RowFailed(LEASE, "a", "refused_by_engine", "no \udc00\0", 0.0), 0.0, PROMPTS)
    assert failed.error == {"code": "refused_by_engine", "message": "no \ufffd\ufffd"}
