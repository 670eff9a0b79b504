"""How often the lines of a bulk job are counted."""

from models.bulk.bulk_progress import pause_s


def test_counting_takes_a_fiftieth_of_the_time_at_most_once_a_second():
    assert pause_s(0.001, 10) == 1.0
    assert pause_s(0.1, 50_000) == 5.0
    assert pause_s(2.0, 1_000_000) == 100.0


def test_a_count_that_a_busy_machine_delays_does_not_keep_a_small_job_from_ending():
    assert pause_s(2.4, 2_000) == 10.2
