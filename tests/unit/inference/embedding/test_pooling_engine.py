"""The engine of vectors and scores, on a model whose vectors tell the lengths of texts."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.embedding.pooling_engine import PoolingEngine, choose
from inference.embedding.vectors import Vectors, cosines, packed, unpacked
from inference.engine_errors import OutOfMemory
from inference.engine_requests import DecodingRequest, FinishedRow, PoolingRequest
from inference.remote.server_errors import RowRefused, ServerLost
from request_body import Pooling
from scheduling.request import ServiceTier


class Lengths:
    """Gives each text its characters and their square, each pair the sum of its characters; has memory for `most`."""

    def __init__(self, most: int = 10**6) -> None:
        self.passes: list[list[Any]] = []
        self.most = most

    def __call__(self, items: list[Any]) -> Vectors:
        if sum(len("".join(item)) for item in items) > self.most:
            raise OutOfMemory(needed_bytes=2, budget_bytes=1)
        self.passes.append(items)
        if isinstance(items[0], tuple):
            return np.array([len(query) + len(document) for query, document in items], np.float32)
        return np.array([[len(item), len(item) ** 2] for item in items], np.float32)


def row(id: str, *texts: str, tier: ServiceTier = "default", **asked: Any) -> PoolingRequest:
    tokens = tuple(map(len, texts[asked.get("queries", 0) if asked.pop("pairs", False) else 0 :]))
    pooling = Pooling(**{"tokens": tokens} | asked)
    return PoolingRequest(id, texts, pooling, tier)


def score(id: str, *texts: str, pairs: bool = False, queries: int = 1) -> PoolingRequest:
    return row(id, *texts, queries=queries, pairs=pairs)


def values(ended: FinishedRow, rows: int) -> list[list[float]]:
    assert (ended.reason, ended.tokens) == ("eos", 0)
    found: list[list[float]] = unpacked(ended.text or "", rows).tolist()
    return found


def test_each_text_of_each_row_gets_its_own_vector_in_the_order_of_the_texts() -> None:
    engine = PoolingEngine(Lengths(), scores_pairs=False, pass_tokens=6)
    ended, figures = engine.run([row("a", "xxxxx", "x", "xxx"), row("b", "xx")])
    assert [one.id for one in ended] == ["a", "b"]
    assert values(ended[0], 3) == [[5, 25], [1, 1], [3, 9]]
    assert values(ended[1], 1) == [[2, 4]]
    assert (engine.rows, engine.kv_bytes, figures.size, figures.length, figures.peak_kv_bytes) == ({}, 0, 2, 9, 11)


def test_an_interactive_row_is_served_by_the_next_pass_and_alone() -> None:
    model = Lengths()
    engine = PoolingEngine(model, scores_pairs=False, pass_tokens=8)
    engine.insert([row("bulk", *["xxxx"] * 20, tier="flex")])
    assert engine.step() == []
    engine.insert([row("now", "yyyy")])
    assert [one.id for one in engine.step()] == ["now"]
    assert model.passes == [["xxxx"] * 2, ["yyyy"]]
    assert engine.rows == {"bulk": 0}


def test_rows_take_turns_so_that_a_short_one_does_not_wait_for_a_long_one() -> None:
    model = Lengths()
    engine = PoolingEngine(model, scores_pairs=False, pass_tokens=2)
    engine.insert([row("long", *["xx"] * 9), row("short", "yy", "yy"), row("other", "zz")])
    ended = [one.id for _ in range(6) for one in engine.step()]
    assert ended == ["other", "short"]
    assert model.passes == [["xx"], ["yy"], ["zz"], ["xx"], ["yy"], ["xx"]]


def test_texts_of_similar_length_share_a_pass_and_the_oldest_is_always_among_them() -> None:
    assert choose([100, 9, 101, 99, 500, 80], most_tokens=400) == [0, 2, 3]
    assert choose([500, 9, 8], most_tokens=400) == [0]
    assert choose([1, 9, 10], most_tokens=400) == [0, 1]


@given(st.lists(st.integers(1, 300), min_size=1, max_size=60), st.integers(1, 1000))
def test_a_pass_never_has_more_tokens_than_allowed_unless_it_is_one_text(lengths: list[int], most: int) -> None:
    chosen = choose(lengths, most)
    assert chosen[0] == 0
    assert len(set(chosen)) == len(chosen)
    assert len(chosen) == 1 or len(chosen) * max(lengths[number] for number in chosen) <= most


def test_without_a_cross_encoder_a_score_is_the_cosine_of_query_and_document() -> None:
    engine = PoolingEngine(Lengths(), scores_pairs=False, pass_tokens=100)
    (ended,), _ = engine.run([score("a", "xx", "xx", "xxxx")])
    assert values(ended, 1)[0] == pytest.approx([1, (2 * 4 + 4 * 16) / np.hypot(2, 4) / np.hypot(4, 16)])
    (ended,), _ = engine.run([score("b", "x", "xx", "xx", "x", queries=2)])
    expected = (2 + 4) / np.hypot(1, 1) / np.hypot(2, 4)
    assert values(ended, 1)[0] == pytest.approx([expected, expected])
    assert cosines(np.zeros((1, 2), np.float32), np.ones((1, 2), np.float32)).tolist() == [0]


def test_a_cross_encoder_reads_the_query_with_each_document() -> None:
    model = Lengths()
    engine = PoolingEngine(model, scores_pairs=True, pass_tokens=100)
    (one, each), _ = engine.run(
        [score("one", "qq", "d", "ddd", pairs=True), score("each", "q", "", "d", "e", pairs=True, queries=2)]
    )
    assert values(one, 1) == [[3, 5]]
    assert values(each, 1) == [[2, 1]]
    assert sorted(pair for items in model.passes for pair in items) == [
        ("", "e"),
        ("q", "d"),
        ("qq", "d"),
        ("qq", "ddd"),
    ]


def test_a_pass_that_outgrows_the_memory_is_tried_again_with_fewer_texts() -> None:
    engine = PoolingEngine(Lengths(most=5), scores_pairs=False, pass_tokens=64)
    (ended,), figures = engine.run([row("a", *["xx"] * 8)])
    assert values(ended, 8) == [[2, 4]] * 8
    assert figures.iterations == 4
    with pytest.raises(OutOfMemory):
        engine.run([row("b", "xxxxxx")])


def test_a_removed_row_leaves_and_the_others_go_on() -> None:
    engine = PoolingEngine(Lengths(), scores_pairs=False, pass_tokens=2)
    engine.insert([row("a", "xx", "xx"), row("b", "yy")])
    engine.step()
    removed = engine.remove("a")
    assert removed is not None
    assert (removed.reason, removed.tokens, removed.text) == ("removed", 0, "")
    assert engine.remove("a") is None
    assert [one.id for one in engine.step()] == ["b"]
    engine.insert([row("c", "zz")])
    assert engine.preempt("c") == row("c", "zz")
    with pytest.raises(KeyError):
        engine.preempt("c")


def test_what_is_no_request_for_vectors_is_refused_and_harms_no_other_row() -> None:
    model = Lengths()
    engine = PoolingEngine(model, scores_pairs=True, pass_tokens=100)
    chat, vector = DecodingRequest("chat", (1, 2), 5), row("vector", "x")
    ended, _ = engine.run([chat, vector, score("pair", "q", "d", pairs=True)])
    assert [(one.id, one.reason) for one in ended] == [("chat", "refused"), ("vector", "refused"), ("pair", "eos")]
    assert "generates no answers" in ended[0].refusal
    assert len(model.passes) == 2  # the first one is the trial of a new engine
    engine.insert([score("pair", "q", "d", pairs=True)])
    with pytest.raises(ValueError, match="running already"):
        engine.insert([score("pair", "q", "d", pairs=True)])


def test_rows_of_a_server_that_is_lost_go_back_and_only_the_row_that_it_refuses_fails() -> None:
    model = Lengths()
    faults: list[Exception] = [ServerLost("gone")]

    def encode(items: list[Any]) -> Vectors:
        if faults:
            raise faults.pop()
        if "bad" in items:
            raise RowRefused("no such text")
        return model(items)

    engine = PoolingEngine(encode, scores_pairs=False, pass_tokens=100)
    rows = [row("a", "abc"), row("b", "bad", "bcd"), row("c", "cde")]
    engine.insert(rows)
    assert [(one.id, one.reason) for one in engine.step()] == [
        ("a", "unfinished"),
        ("b", "unfinished"),
        ("c", "unfinished"),
    ]
    assert (engine.rows, engine.kv_bytes) == ({}, 0)
    ended = {one.id: one for one in engine.run(rows)[0]}
    assert {one.id: one.reason for one in ended.values()} == {"a": "eos", "b": "refused", "c": "eos"}
    assert "no such text" in ended["b"].refusal


def test_packed_values_are_openais_base64_of_float32() -> None:
    vectors = np.array([[0.5, -1.25], [3, 1e-9]], np.float32)
    assert packed(vectors) == "AAAAPwAAoL8AAEBAX3CJMA=="
    assert unpacked(packed(vectors), 2).tolist() == vectors.tolist()
    with pytest.raises(ValueError, match=r"reshape|base64|padding|multiple"):
        unpacked("AAAA", 1)


def test_a_row_whose_values_are_no_numbers_has_failed_and_its_mates_are_answered() -> None:
    def encode(items: list[Any]) -> Vectors:
        return np.array([[np.nan if item == "bad" else 1.0] for item in items], np.float32)

    engine = PoolingEngine(encode, scores_pairs=False, pass_tokens=100)
    ended, _ = engine.run([row("a", "good"), row("b", "bad"), row("c", "fine")])
    assert [one.reason for one in ended] == ["eos", "failed", "eos"]
    assert "no numbers" in ended[1].refusal
