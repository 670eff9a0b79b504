"""Which rows are prefilled together."""

import pytest

from inference.local.batch_rows import BatchRow, of_similar_length
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
    assert [[len(row.token_ids) for row in group] for group in of_similar_length(rows)] == groups
