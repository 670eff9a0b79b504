"""When a row finishes, and which rows are prefilled together."""

import pytest

from inference.engine_errors import SequenceTooLong
from inference.local.batch_rows import BatchRow, group_by_length
from inference.sequences import Sequence


@pytest.mark.parametrize(
    ("lengths", "groups"),
    [
        ([], []),
        ([500], [[500]]),
        ([80, 20, 16], [[16, 20], [80]]),  # all in one would pad by 60 + 64
        ([16, 80], [[16, 80]]),  # 64 tokens of padding
        ([15, 80], [[15], [80]]),
        ([100] * 9 + [107], [[100] * 9 + [107]]),  # 9 * 7
        ([100] * 9 + [108], [[100] * 9, [108]]),  # 9 * 8
    ],
)
def test_a_group_is_padded_by_less_than_another_forward_pass_costs(lengths, groups):
    rows = [BatchRow(Sequence(str(n), (9,) * length, 5), n, 1000) for n, length in enumerate(lengths)]
    assert [
        [len(row.token_ids) for row in group] for group in group_by_length(rows, [len(row.token_ids) for row in rows])
    ] == groups


class Letters:
    def decode(self, token_ids, *, skip_special_tokens=False):
        return "".join(chr(ord("a") + token) for token in token_ids)


def append(row, *tokens):
    return [row.append(token, frozenset({7}), Letters()) for token in tokens]


def test_a_row_finishes_on_eos_on_a_stop_string_and_at_its_limit():
    eos, stop, limit = (BatchRow(Sequence("a", (9,), 3, stop=("cd",)), n, 1000) for n in range(3))
    assert append(eos, 1, 7) == [False, True]
    assert append(stop, 2, 3) == [False, True]
    assert append(limit, 1, 1, 1) == [False, False, True]
    assert [row.finish_reason for row in (eos, stop, limit)] == ["eos", "stop", "limit"]


def test_tokens_of_earlier_slices_count_against_the_limit_and_are_not_new():
    row = BatchRow(Sequence("a", (9, 9), 5, generated_ids=(1, 2, 3)), 0, 1000)
    assert (row.token_ids, row.cached_tokens, row.running) == ((9, 9, 1, 2, 3), 4, True)
    assert append(row, 4, 5) == [False, True]
    assert (row.new_tokens, row.result().generated_ids) == (2, (1, 2, 3, 4, 5))


def test_a_row_never_exceeds_the_models_positions():
    assert BatchRow(Sequence("a", (9,) * 6, 50), 0, max_positions=8).limit == 2
    with pytest.raises(SequenceTooLong):
        BatchRow(Sequence("a", (9,) * 8, 50), 0, max_positions=8)
