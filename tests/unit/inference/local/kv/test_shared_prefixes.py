"""Keys of blocks: equal only for the same tokens behind the same tokens under the same salt."""

from inference.local.kv.shared_prefixes import SharedPrefixes, extend_keys


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


def test_keys_of_a_longer_row_continue_those_that_are_known():
    keys = keys_of([1, 2, 3])
    extend_keys(keys, [1, 2, 3, 4, 5, 6], "a", 2)
    assert keys == keys_of([1, 2, 3, 4, 5, 6])


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
