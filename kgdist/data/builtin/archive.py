"""A zip file of one data set, unpacked without trusting it.

The folder to fill is given; nothing is ever written outside of it, and links, odd names and more bytes than announced are refused
before the first file is made. It fetches nothing and knows no data set.
"""

from __future__ import annotations

import errno
import stat
import struct
import zipfile
import zlib
from pathlib import Path

from kgdist.base.errors import DataError, KgdistError
from kgdist.base.files import check_room
from kgdist.base.progress import bar

MAX_MEMBERS = 1000
PIECE = 1 << 20
MARGIN = 16 << 20  # bytes of the disk that stay free
# Besides its own error, zipfile lets through what its parts make of damaged bytes.
DAMAGE = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, NotImplementedError, RuntimeError, ValueError, OverflowError)
LITTER = ("__MACOSX/", ".DS_Store")  # what archives made on a Mac carry along


def unpack(archive: Path, folder: Path, *, limit: int) -> None:
    """Unpack `archive` into the empty `folder`; a folder at the top of all members is taken away.

    `limit` is the most bytes that the data set can plausibly have. Raises DataError for an archive that is damaged or hostile,
    KgdistError if the disk is too small or cannot be written; `folder` may then be half filled.
    """
    if not archive.is_file():
        raise DataError(archive, "no such file")
    try:
        with zipfile.ZipFile(archive) as zipped:
            members = _checked(archive, zipped)
            need = sum(member.file_size for member in members.values())
            if need > limit:
                raise DataError(archive, f"would unpack to {need:,} bytes, this data set has at most {limit:,}; not unpacked")
            check_room(folder, need + MARGIN)
            with bar(total=need, desc=f"unpacking {archive.name.lstrip('.')}", unit="B") as progress:
                for name, member in members.items():
                    (folder / name).parent.mkdir(parents=True, exist_ok=True)
                    left = member.file_size  # the size in the directory of an archive is only a claim
                    with zipped.open(member) as source, (folder / name).open("xb") as target:
                        while (piece := source.read(PIECE)) and (left := left - len(piece)) >= 0:
                            target.write(piece)
                            progress.update(len(piece))
                    if left != 0:
                        raise zipfile.BadZipFile(f"{member.filename!r} does not have the size that is announced")
    except DAMAGE as error:
        raise DataError(archive, f"not a sound zip archive ({error})") from error
    except OSError as error:
        if error.errno == errno.EINVAL:  # a place in the archive before its start
            raise DataError(archive, f"not a sound zip archive ({error.strerror})") from error
        raise KgdistError(f"{folder}: cannot be written ({error.strerror or error})") from error


def _checked(archive: Path, zipped: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """Path inside the folder -> member, for the files of the archive. Raises DataError for members that no data set has."""
    members = [member for member in zipped.infolist() if not member.filename.startswith(LITTER[0])]
    members = [member for member in members if not member.is_dir() and Path(member.filename).name != LITTER[1]]
    if not 0 < len(members) <= MAX_MEMBERS:
        raise DataError(archive, f"holds {len(members)} files, expected 1 to {MAX_MEMBERS}")
    tops = {member.filename.partition("/")[0] for member in members}
    skip = 1 if len(tops) == 1 and all("/" in member.filename for member in members) else 0
    found: dict[str, zipfile.ZipInfo] = {}
    for member in members:
        name = member.filename
        parts = name.split("/")
        # orig_filename still has what zipfile cut off (NUL) or turned round (a backslash, on some systems).
        if any(part in ("", ".", "..") for part in parts) or ":" in name or set("\\\0") & set(member.orig_filename):
            raise DataError(archive, f"refused, its member {member.orig_filename!r} would leave the folder or has an odd name")
        if stat.S_IFMT(member.external_attr >> 16) not in (0, stat.S_IFREG):
            raise DataError(archive, f"refused, its member {name!r} is a link or a device, not a file")
        if member.flag_bits & 1:
            raise DataError(archive, f"refused, its member {name!r} is encrypted")
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise DataError(archive, f"its member {name!r} is compressed in an unusual way; pack it again with plain zip")
        if found.setdefault("/".join(parts[skip:]), member) is not member:
            raise DataError(archive, f"refused, it holds {name!r} twice")
    return found
