"""Which batches a profile measures."""

from inference.local.engine_profile import Grid, measure


def test_a_profile_measures_what_the_budget_and_the_positions_allow(llama):
    grid = Grid(sizes=(1, 2, 8), lengths=(8, 40, 400), steps=3, repeats=2)
    measured = measure(llama.loaded, kv_budget_bytes=2 * 44 * llama.loaded.delta_bytes, grid=grid)
    assert [(size, length) for size, length, _ in measured.prefills] == [(1, 8), (2, 8), (1, 40), (2, 40)]
    assert [(size, cached) for size, cached, _ in measured.decode_steps] == [(1, 10), (2, 10), (1, 42), (2, 42)]
    assert all(seconds > 0 for _, _, seconds in (*measured.prefills, *measured.decode_steps))


def test_a_profile_ends_when_its_time_is_over(llama):
    measured = measure(llama.loaded, 2**20, Grid((1, 2, 4), (8, 16), steps=1, repeats=1), within_s=0.0)
    assert len(measured.prefills) == len(measured.decode_steps) == 1
