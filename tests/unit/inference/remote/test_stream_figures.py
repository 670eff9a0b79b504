"""What iterations take, from rows and tokens at two moments."""

from inference.engine_requests import DecodingRequest
from inference.remote.remote_row import RemoteRow
from inference.remote.stream_figures import StepSamples
from scheduling.costs import StepWindow


def a_row(id: str, prompt: int, tokens: int, first_token_at: float | None = 0.0) -> RemoteRow:
    sequence = DecodingRequest(id, (5,) * prompt, 1000)
    return RemoteRow(sequence, 1000, 1000, True, True, 0.0, ids=[7] * tokens, first_token_at=first_token_at)


def test_a_window_counts_iterations_rows_cached_and_prefilled_tokens() -> None:
    samples = StepSamples()
    samples.observe([a_row("a", 10, 5), a_row("waits", 20, 0, None)], 1.0)
    samples.observe([a_row("a", 10, 15), a_row("joined", 30, 4, 1.5)], 2.0)
    assert samples.take() == [StepWindow(1.0, 2.0, 30, row_reads=10 * 1.5 * 25, row_steps=10 * 1.5, steps=10)]
    assert not samples.take()  # each window is given once


def test_windows_without_a_row_all_through_say_nothing() -> None:
    samples = StepSamples()
    samples.observe([], 1.0)
    samples.observe([a_row("a", 10, 5, 1.5)], 2.0)
    samples.observe([a_row("a", 10, 5)], 3.0)  # nothing came
    samples.observe([a_row("a", 10, 50)], 30.0)  # too long
    assert not samples.take()
