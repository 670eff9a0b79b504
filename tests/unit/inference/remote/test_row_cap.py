"""How many rows a server should have: grown while nothing speaks against it, lowered at each sign of overload."""

from inference.remote.row_cap import HOLD_S, REMEASURE_S, START_ROWS, WINDOW_S, CapSigns, RowCap


def full(cap: RowCap, waiting: int = 0, tokens: int = 0, preempted: bool = False, refused: bool = False) -> CapSigns:
    return CapSigns(cap.value, waiting, tokens, preempted, refused)


def test_it_doubles_while_every_place_is_taken_and_nothing_waits() -> None:
    cap = RowCap(None, by_throughput=False)
    for now in range(3):
        cap.update(full(cap, tokens=now + 1), float(now))
    assert cap.value == 8 * START_ROWS


def test_rows_that_get_no_token_leave_it_as_it_is() -> None:
    for by_throughput in (False, True):
        cap = RowCap(None, by_throughput)
        for now in range(9):
            cap.update(full(cap), float(now))
        assert cap.value == START_ROWS


def test_free_places_and_a_row_that_waits_once_leave_it_as_it_is() -> None:
    cap = RowCap(None, by_throughput=False)
    cap.update(CapSigns(START_ROWS - 1, waiting=0, tokens=0), 0.0)
    cap.update(full(cap, waiting=1), 1.0)
    assert cap.value == START_ROWS


def test_rows_that_wait_at_two_looks_are_taken_off_and_one_more_is_tried_later() -> None:
    cap = RowCap(None, by_throughput=False)
    cap.update(full(cap, tokens=1), 0.0)
    for now in (1.0, 2.0):
        cap.update(full(cap, waiting=6), now)
    assert cap.value == 10
    cap.update(full(cap, tokens=2), 2.5 + HOLD_S / 2)
    assert cap.value == 10
    cap.update(full(cap, tokens=3), 3.0 + HOLD_S)
    assert cap.value == 11


def test_a_preemption_or_a_refusal_takes_one_off_what_the_server_holds() -> None:
    for sign in ({"preempted": True}, {"refused": True}):
        cap = RowCap(None, by_throughput=False)
        cap.update(CapSigns(rows=5, waiting=0, tokens=0, **sign), 0.0)
        assert cap.value == 4


def test_where_the_memory_is_known_a_preemption_and_the_rows_that_wait_after_it_leave_it_as_it_is() -> None:
    cap = RowCap(None, by_throughput=False, known_memory=True)
    cap.update(CapSigns(rows=6, waiting=1, tokens=0, preempted=True), 1.0)
    for now in (2.0, 3.0, HOLD_S):
        cap.update(CapSigns(rows=6, waiting=2, tokens=0), now)
    assert cap.value == START_ROWS


def test_where_the_memory_is_known_a_refusal_and_rows_that_wait_for_long_lower_it() -> None:
    cap = RowCap(None, by_throughput=False, known_memory=True)
    cap.update(CapSigns(rows=6, waiting=0, tokens=0, preempted=True, refused=True), 1.0)
    assert cap.value == 5
    for now in (1.0, 2.0):
        cap.update(CapSigns(rows=5, waiting=1, tokens=0), now + HOLD_S)
    assert cap.value == 4


def test_it_is_never_below_one_row_nor_above_what_was_configured() -> None:
    cap = RowCap(12, by_throughput=False)
    for now in range(3):
        cap.update(full(cap, tokens=now + 1), float(now))
    assert cap.value == 12
    for now in range(3, 9):
        cap.update(CapSigns(rows=1, waiting=50, tokens=0), float(now))
    assert cap.value == 1
    assert RowCap(3, by_throughput=False).value == 3


def test_where_the_server_tells_nothing_it_grows_as_long_as_throughput_does() -> None:
    # ten tokens a second for each row, up to 32 rows, and no more beyond
    cap, now, tokens, seen = RowCap(None, by_throughput=True), 0.0, 0, []
    for _ in range(40):
        cap.update(full(cap, tokens=tokens), now)
        now += WINDOW_S / 2
        tokens += int(10 * min(32, cap.value) * WINDOW_S / 2)
        seen.append(cap.value)
    assert max(seen) == 64
    assert cap.value == 32
    cap.update(full(cap, tokens=tokens), now + REMEASURE_S)  # it measures anew
    assert cap.value == 32
