"""What a refit is trained on, and what is held out."""

import numpy as np
import pytest

from learning.retraining.training_set import TrainingSetBounds, is_held_out, select_entries
from tests.unit.learning.made_up_lengths import outcomes, prompt


def test_one_text_in_five_is_held_out_whatever_its_application() -> None:
    held = [is_held_out(prompt("a", 5, f"text {i}")) for i in range(2000)]
    assert np.mean(held) == pytest.approx(0.2, abs=0.03)
    assert held == [is_held_out(prompt("b", 9, f"text {i}")) for i in range(2000)]


def test_old_entries_go_by_age_and_count_but_rare_applications_keep_theirs() -> None:
    log = outcomes(1000, application="common") + outcomes(20, application="rare")
    kept = select_entries(log, TrainingSetBounds(100, 500.0), 1000.0, lambda o: o.prompt.application)
    by_application = [o.prompt.application for o in kept]
    assert by_application.count("rare") == 0  # all older than 500 s
    kept = select_entries(log, TrainingSetBounds(100, 5000.0), 1000.0, lambda o: o.prompt.application)
    by_application = [o.prompt.application for o in kept]
    assert (by_application.count("rare"), by_application.count("common")) == (20, 80)
    assert min(o.at for o in kept if o.prompt.application == "common") == 920  # the newest of 0..999


def test_a_group_above_its_share_fills_half_of_it_with_preferred_entries() -> None:
    kept = select_entries(outcomes(1000), TrainingSetBounds(100), 1000.0, lambda _: "one", lambda o: o.at < 100)
    assert sum(o.at < 100 for o in kept) == 50
    assert sum(o.at >= 950 for o in kept) == 50
