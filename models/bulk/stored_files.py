"""Stores, lists and deletes files for clients, in chunks, so that a file of any size needs little memory."""

import uuid
from collections.abc import Iterator, Sequence
from datetime import timedelta

from sqlalchemy import Connection, Select, delete, func, insert, select, tuple_, update
from sqlalchemy.orm import Session, sessionmaker

from models.bulk.bulk_tables import UNENDED, FileChunk, FilePurpose, StoredFile
from models.client_requests import Page
from models.connections.sql import text
from models.tenants.tenant_limits import check_alone

# An upload that has not ended after this long counts as broken off, for example because the web process was killed, and
# its bytes no longer count against the tenant. The web process takes no less than 150 kB/s, so that 2 GB arrive in this
# time.
UPLOAD_WITHIN_S = 14_400.0
CHUNKS_AT_ONCE = 64  # the most chunks that one statement deletes; each has a megabyte, or one line. Not tuned


def new_file_id() -> str:
    """Returns a new file id in OpenAI's form: `file-` and 32 hexadecimal digits."""
    return f"file-{uuid.uuid4().hex}"


def begin_upload(session: Session, tenant: str, filename: str) -> str:
    """Stores a file without bytes, which no call shows before `finish_upload`; returns its id."""
    file_id = new_file_id()
    session.execute(insert(StoredFile).values(id=file_id, tenant=tenant, purpose=FilePurpose.batch, filename=filename))
    session.commit()
    return file_id


class StorageFull(Exception):
    """The tenant's files together would exceed the bytes that the tenant may store."""


def add_chunk(session: Session, tenant: str, file_id: str, first_line: int, data: bytes, most_bytes: int) -> None:
    """Stores lines of a file from `first_line` on; raises StorageFull if the tenant's files exceed `most_bytes`."""
    check_alone(session, tenant, "bytes of files")
    if stored_bytes(session, tenant) + len(data) > most_bytes:
        raise StorageFull
    session.execute(insert(FileChunk).values(file_id=file_id, first_line=first_line, data=data))
    session.commit()


def finish_upload(
    session: Session, file_id: str, size_bytes: int, lines: int, last_line: int, expires_after_s: float | None
) -> StoredFile:
    """Stores a file's size, which makes it visible to its tenant; all its chunks must be stored."""
    expires_at = None if expires_after_s is None else StoredFile.created_at + timedelta(seconds=expires_after_s)
    stored = session.scalars(
        update(StoredFile)
        .where(StoredFile.id == file_id)
        .values(bytes=size_bytes, lines=lines, last_line=last_line, expires_at=expires_at)
        .returning(StoredFile)
        .execution_options(synchronize_session=False)
    ).one()
    session.commit()
    return stored


def abandon_upload(session: Session, file_id: str) -> None:
    """Deletes a file whose upload failed, CHUNKS_AT_ONCE of its chunks in each transaction."""
    some = select(FileChunk.first_line).where(FileChunk.file_id == file_id).limit(CHUNKS_AT_ONCE)
    chunks = delete(FileChunk).where(FileChunk.file_id == file_id, FileChunk.first_line.in_(some))
    while session.scalar(some) is not None:
        session.execute(chunks.execution_options(synchronize_session=False))
        session.commit()
    session.execute(delete(StoredFile).where(StoredFile.id == file_id))
    session.commit()


def fetch_file(session: Session, tenant: str, file_id: str) -> StoredFile | None:
    """Returns a file of this tenant that is uploaded and not deleted."""
    return session.scalar(_files_of(tenant).where(StoredFile.id == file_id))


def file_page(
    session: Session,
    tenant: str,
    *,
    purposes: Sequence[FilePurpose] = (),
    after: str | None = None,
    limit: int = 20,
    oldest_first: bool = False,
) -> Page[StoredFile] | None:
    """Returns files by age, newest first unless `oldest_first`, beginning behind the file `after`.

    Returns None if this tenant has no file `after`; a deleted file counts until upkeep removes it.
    """
    position = tuple_(StoredFile.created_at, StoredFile.id)
    listed = _files_of(tenant)
    if purposes:
        listed = listed.where(StoredFile.purpose.in_(purposes))
    if after is not None:
        created_at = session.scalar(
            select(StoredFile.created_at).where(StoredFile.id == after, StoredFile.tenant == tenant)
        )
        if created_at is None:
            return None
        place = (created_at, after)
        listed = listed.where(position > place if oldest_first else position < place)
    columns = (StoredFile.created_at, StoredFile.id)
    order = columns if oldest_first else [column.desc() for column in columns]
    files = list(session.scalars(listed.order_by(*order).limit(limit + 1)))
    return Page(files[:limit], len(files) > limit)


def delete_file(session: Session, tenant: str, file_id: str) -> bool:
    """Hides a file from its tenant for good; returns False without such a file. Bulk jobs go on reading it."""
    deleted = session.scalar(
        update(StoredFile)
        .where(StoredFile.id == file_id, StoredFile.tenant == tenant, StoredFile.deleted_at.is_(None))
        .values(deleted_at=func.clock_timestamp())
        .returning(StoredFile.id)
        .execution_options(synchronize_session=False)
    )
    session.commit()
    return deleted is not None


def stored_bytes(session: Session, tenant: str) -> int:
    """Returns the bytes of a tenant's files, unfinished uploads and deleted files of unended bulk jobs included."""
    total = session.scalar(
        text(f"""
            select sum(coalesce(bytes, (select sum(octet_length(data)) from file_chunks where file_id = id), 0))
            from (
                select id, bytes from files where tenant = :tenant and deleted_at is null and purpose = 'batch'
                union
                select f.id, f.bytes from files f join bulk_jobs j on j.input_file_id = f.id and j.tenant = f.tenant
                where f.tenant = :tenant and f.deleted_at is not null and j.{UNENDED}
            ) as kept
        """),  # noqa: S608  # a constant
        {"tenant": tenant},
    )
    return int(total or 0)


def chunks(sessions: sessionmaker[Session], file_id: str) -> Iterator[bytes]:
    """Yields a file's bytes chunk by chunk; holds no connection while the caller handles a chunk."""
    after: int | None = 0
    while after is not None:
        with sessions() as session:
            chunk = next_chunk(session, file_id, after)
        if chunk is not None:
            yield chunk.data
        after = None if chunk is None else chunk.first_line


def first_lines(session: Session, file_id: str) -> list[int]:
    """Returns the number of the first line of each chunk of a file."""
    firsts = select(FileChunk.first_line).where(FileChunk.file_id == file_id).order_by(FileChunk.first_line)
    return list(session.scalars(firsts))


def next_chunk(session: Session, file_id: str, after: int) -> FileChunk | None:
    """Returns the chunk behind the one whose first line is `after`, or None behind the last chunk."""
    following = select(FileChunk).where(FileChunk.file_id == file_id, FileChunk.first_line > after)
    return session.scalar(following.order_by(FileChunk.first_line).limit(1))


def _files_of(tenant: str) -> Select[StoredFile]:
    return select(StoredFile).where(
        StoredFile.tenant == tenant, StoredFile.deleted_at.is_(None), StoredFile.bytes.is_not(None)
    )


OLD_FILES = """
    select f.id from files f
    where (f.deleted_at is not null or f.expires_at < statement_timestamp()
            or f.bytes is null and f.created_at < statement_timestamp() - make_interval(secs => :upload_s)
            or f.job_id is null and f.created_at < statement_timestamp() - make_interval(secs => :retention_s))
        and not exists (
            select from bulk_jobs j where j.input_file_id = f.id and j.next_line <= j.last_line
                and j.status in ('validating', 'in_progress', 'finalizing', 'cancelling')
        )
"""


def delete_old_chunks(connection: Connection, retention_s: float, limit: int) -> int:
    """Deletes up to CHUNKS_AT_ONCE chunks of files that `delete_old_files` will delete, and hides these files."""
    return connection.execute(
        text(f"""
            with old as (
                {OLD_FILES} and exists (select from file_chunks where file_id = f.id)
                limit :limit for update skip locked
            ), hidden as (
                update files set deleted_at = clock_timestamp() where deleted_at is null and id in (select id from old)
            )
            delete from file_chunks where ctid = any(array(
                select c.ctid from old join file_chunks c on c.file_id = old.id limit :limit
            ))
        """),  # noqa: S608  # a constant
        {"retention_s": retention_s, "upload_s": UPLOAD_WITHIN_S, "limit": min(limit, CHUNKS_AT_ONCE)},
    ).rowcount


def delete_old_files(connection: Connection, retention_s: float, limit: int) -> int:
    """Deletes up to `limit` files without chunks that are deleted, expired, old or broken off, and needed by no job."""
    return connection.execute(
        text(f"""
            delete from files where id in (
                {OLD_FILES} and not exists (select from file_chunks where file_id = f.id)
                limit :limit for update skip locked
            )
        """),  # noqa: S608  # a constant
        {"retention_s": retention_s, "upload_s": UPLOAD_WITHIN_S, "limit": limit},
    ).rowcount
