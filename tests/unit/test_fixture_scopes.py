"""What the tests of one folder share is taken down when its last test has ended, not when the session ends."""

from pathlib import Path

TESTS = Path(__file__).parents[1]


def test_a_folder_whose_tests_share_a_fixture_is_a_package():
    sharing = [file.parent for file in TESTS.rglob("conftest.py") if 'scope="package"' in file.read_text()]
    assert sharing
    assert [folder for folder in sharing if not (folder / "__init__.py").exists()] == []
