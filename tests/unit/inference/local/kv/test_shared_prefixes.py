"""Keys of blocks: equal only for the same tokens behind the same tokens under the same salt."""

from hypothesis import given
from hypothesis import strategies as st

from inference.local.kv.shared_prefixes import SharedPrefixes, extend_keys, keys_of_parts


def keys_of(tokens, salt="a"):
    keys: list[bytes] = []
    extend_keys(keys, tokens, salt, 2)
    return keys


def test_only_complete_blocks_have_keys():
    assert [len(keys_of(range(count))) for count in range(6)] == [0, 0, 1, 1, 2, 2]


def test_a_key_covers_all_tokens_in_front_of_its_block():
    assert keys_of([1, 2, 3, 4])[0] == keys_of([1, 2, 9, 9])[0]
    assert keys_of([1, 2, 3, 4])[1] != keys_of([1, 9, 3, 4])[1]
    assert len({key for tokens in ([1, 2, 3, 4], [3, 4, 1, 2], [1, 2, 1, 2]) for key in keys_of(tokens)}) == 5


def test_another_salt_gives_other_keys():
    assert not set(keys_of(range(20), "a")) & set(keys_of(range(20), "b"))


def test_a_prefix_is_found_up_to_the_first_block_that_nobody_computed():
    prefixes, keys = SharedPrefixes(), keys_of([1, 2, 3, 4, 5, 6])
    prefixes.register([7, 3], keys)
    assert prefixes.find(keys) == [7, 3]
    assert prefixes.find(keys_of([1, 2, 9, 9, 5, 6])) == [7]
    assert prefixes.find(keys[1:]) == [3]
    assert prefixes.find(keys_of([1, 2], "another")) == []


def test_of_two_blocks_with_the_same_tokens_the_first_is_kept():
    prefixes, keys = SharedPrefixes(), keys_of([1, 2])
    prefixes.register([7], keys)
    prefixes.register([8], keys)
    assert (prefixes.find(keys), 8 in prefixes) == ([7], False)


def parts_of(tokens, before=(), salt="a"):
    keys: list[bytes] = []
    extend_keys(keys, before, salt, 2)
    return keys_of_parts(keys, len(keys), tokens, salt)


def test_a_part_of_a_block_is_found_in_steps_and_never_reaches_the_blocks_last_token():
    assert [len(parts_of(range(count))) for count in (4, 5, 8, 9, 32)] == [0, 1, 1, 2, 7]


def test_the_longest_part_that_a_block_begins_with_is_found_behind_the_same_tokens_only():
    prefixes = SharedPrefixes()
    prefixes.register([7], keys_of([0, 1]))
    prefixes.register_parts(keys_of([0, 1])[0], parts_of(range(16)))
    assert prefixes.find_part(parts_of([*range(10), *range(90, 96)])) == (7, 8)
    assert prefixes.find_part(parts_of(range(90, 106))) == (0, 0)
    assert prefixes.find_part(parts_of(range(16), before=(5, 6))) == (0, 0)
    assert prefixes.find_part(parts_of(range(16), salt="another")) == (0, 0)


@given(st.lists(st.tuples(st.sampled_from(["register", "evict", "move"]), st.integers(0, 5)), max_size=30))
def test_a_part_that_is_found_is_one_that_its_block_begins_with(operations):
    prefixes, texts = SharedPrefixes(), dict[int, list[int]]()
    for number, (operation, block) in enumerate(operations):
        if operation == "register" and block not in texts:
            texts[block] = [*range(4), number % 3, number, *range(10)]
            prefixes.register([block], keys_of([number, number]))
            prefixes.register_parts(keys_of([number, number])[0], parts_of(texts[block]))
            prefixes.leave(block)
        elif operation == "evict":
            for evicted in prefixes.evict(1):
                del texts[evicted]
        elif operation == "move":
            other = (block + 1) % 6
            moved_to = {old: new for old, new in ((block, other), (other, block)) if old in texts}
            prefixes.move(moved_to)
            texts = {moved_to.get(old, old): text for old, text in texts.items()}
        for wanted in range(3):
            found, count = prefixes.find_part(parts_of([*range(4), wanted, *range(11)]))
            assert not count or texts[found][:count] == [*range(4), wanted, *range(11)][:count]
