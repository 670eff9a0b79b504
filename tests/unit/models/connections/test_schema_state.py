"""The revisions that this code knows are the names of its migrations."""

from alembic.script import ScriptDirectory

from models.connections.schema_state import MIGRATIONS, known_revisions


def test_the_names_of_the_files_are_the_revisions_in_the_order_in_which_alembic_runs_them():
    newest_first = [script.revision for script in ScriptDirectory(str(MIGRATIONS)).walk_revisions()]
    assert newest_first[::-1] == known_revisions()
