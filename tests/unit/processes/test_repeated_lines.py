"""A line that repeats is written a few times, then counted; others are not held up by it."""

from processes.json_logs import MOST_LINES, WINDOW_S, RepeatedLines


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_of_many_equal_lines_a_few_are_written_and_the_rest_is_counted():
    clock = Clock()
    lines = RepeatedLines(clock)
    written = [lines.left_out("broker away") for _ in range(1000)]
    assert written == [0] * MOST_LINES + [None] * (1000 - MOST_LINES)
    clock.now = WINDOW_S + 0.1
    assert lines.left_out("broker away") == 1000 - MOST_LINES


def test_a_line_that_comes_seldom_is_always_written():
    clock = Clock()
    lines = RepeatedLines(clock)
    for clock.now in (0.0, 100.0, 200.0):
        assert lines.left_out("batches lost") == 0


def test_another_line_is_written_while_one_repeats():
    lines = RepeatedLines(Clock())
    for _ in range(100):
        lines.left_out("broker away")
    assert lines.left_out("database away") == 0


def test_texts_without_end_do_not_take_memory_without_end():
    lines = RepeatedLines(Clock())
    for number in range(5000):
        lines.left_out(f"message {number}")
    assert len(lines._seen) <= 1001
