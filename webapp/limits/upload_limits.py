"""The most bytes of uploads."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class UploadLimits:
    """The most bytes of a file, of one of its lines, and of all files of a tenant."""

    file_bytes: int
    line_bytes: int
    tenant_bytes: int
