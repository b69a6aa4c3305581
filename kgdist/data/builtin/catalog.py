"""The data sets known by name: what they hold, and how they come to lie in `<data_path>/<name>/`.

`wordnet` is part of the package; the others are fetched once, from where DGL-KE fetches them, and unpacked. A folder that is
there already is used as it is, whatever its name. Reading the files is the business of `formats`.
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import ipaddress
import os
import shutil
import urllib.parse
from pathlib import Path
from typing import NamedTuple

from kgdist.base.errors import DataError, KgdistError, OptionError, UsageError
from kgdist.base.files import PathLike, locked, safe_join, whole_folders
from kgdist.data.builtin import archive
from kgdist.data.read.lines import split_file

USUAL_PLACE = "https://data.dgl.ai/dataset"
PACKAGED = Path(__file__).parent / "wordnet"
PATIENCE = 3600.0  # seconds that another process may take to fetch it
SPLITS = ("train", "valid", "test")


class BuiltIn(NamedTuple):
    """What a data set holds, as its makers say."""

    entities: int
    relations: int
    triples: int  # of all splits
    splits: tuple[int, int, int] | None = None  # train, valid, test, where published
    packaged: bool = False
    digests: tuple[str, str, str] | None = None  # `_digest` of train, valid, test, where somebody has compared the files

    @property
    def most_bytes(self) -> int:
        """More than the unpacked files can have: a generous length for every line."""
        return 256 * self.triples + 512 * (self.entities + self.relations) + (64 << 20)


# fmt: off
BUILTIN = {
    "wordnet": BuiltIn(34589, 15, 95218, (89218, 3000, 3000), packaged=True),
    "FB15k": BuiltIn(14951, 1345, 592213, (483142, 50000, 59071), digests=(
        "696337a2d6133546ab6806e35dcbd5c0bfbef4f3e553e61714b95f754a6f3c5b",
        "bac82edda6b039f852c8f316eb39cc26061029a762c5d75d52b7a3b1db738663",
        "c60cb5d919959724021809b504b648dfe385b4733bd75918b4dd93c1c3b5f97e",
    )),
    "FB15k-237": BuiltIn(14541, 237, 310116, (272115, 17535, 20466), digests=(
        "8d2a771809b0f38f2824c839f25ec57e3a187405049112751e72c82ee9eb3e12",
        "1c4febacc6daabc6f3f8e72650935126ef208b098be3a90a81780ba69401836d",
        "a7156e4560d173ee2e3e8504c490e95d14fa893f1863a6d584d2f5053489a647",
    )),
    "wn18": BuiltIn(40943, 18, 151442, (141442, 5000, 5000), digests=(
        "20ffc507447671047488b59e3df9e336f30a49fcbfb1770398320e6e0a17db8b",
        "2ab057b18def3db5dfeff4b68d19de0cff0d813aeebd4ff2cee173fb7bc7bc9d",
        "381e7807e5b5d40663a2c40a881dbb81f794bde7a8909f6a67fc4d3cfff69a4a",
    )),
    "wn18rr": BuiltIn(40943, 11, 93003, (86835, 3034, 3134), digests=(
        "70fbc1c7881f33bd10c77bb493127fad58e5720f260d39c137fc927ecfb5d7f6",
        "0f42971b8aa35b97350a9aec3e2015bdce5d33636ed2d5a5b9ea5b2ea5f36547",
        "92f29d2ed83e81896b91575792696fb4d79db289789128f4c1ddbb38b1a07350",
    )),
    "Freebase": BuiltIn(86054151, 14824, 338586276),
    "wikikg2": BuiltIn(2500604, 535, 17137181),
    "biokg": BuiltIn(93773, 51, 5088434),
}
# fmt: on


def ensure(name: str, path: PathLike, *, data_url: str | None = None) -> Path:
    """The folder `<path>/<name>` with a train file; fetched, or unpacked from the package, if it is not there.

    An archive `<path>/<name>.zip` put there by hand is taken instead of the network. The folder appears whole and checked or not
    at all, also when several processes ask for it at once.

    Raises OptionError for an unknown name or a `data_url` that is none, DataError for files that are not the data set, and
    KgdistError if the network, the disk or the lock fails; each says what to do next.
    """
    path = Path(path)
    known = BUILTIN.get(name)
    try:
        folder = safe_join(path, name)
    except UsageError:
        raise _unknown(name, path) from None
    if _has_train(folder):
        return folder
    if known is None:
        raise _unknown(name, path)
    base = _base(data_url)
    if known.digests is None and _readable_on_the_way(base):
        message = f"{data_url} is not encrypted, and of {name} no digests are known that could tell what was changed on the way"
        raise OptionError("--data_url", f"{message}; name an https address, or fetch it by hand to {path / name}.zip")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise KgdistError(f"{path}: cannot be made ({error.strerror}); give a --data_path that can be written") from error
    # What is packed into kgdist is unpacked in a moment; what is fetched is fetched by one process.
    with contextlib.nullcontext() if known.packaged else locked(path / f".{name}.lock", PATIENCE):
        if not _has_train(folder):  # else another process was faster
            if os.path.lexists(folder) and not (folder.is_dir() and not any(folder.iterdir())):
                raise DataError(folder, "is there, but has no train.txt; move it away, and it is fetched again")
            _bring(name, known, path, folder, base)
    return folder


def _bring(name: str, known: BuiltIn, path: Path, folder: Path, base: str) -> None:
    """Make `folder`; the lock is held."""
    if known.packaged:
        try:
            _unpack(PACKAGED / f"{name}.zip", known, folder, extra=("LICENSE", "README.md"))
        except DataError as error:
            raise KgdistError(f"{error}; the installation is damaged, install kgdist again") from error
        return
    url, by_hand, ours = f"{base}/{name}.zip", path / f"{name}.zip", path / f".{name}.zip"
    if by_hand.exists():
        try:
            _unpack(by_hand, known, folder)
        except DataError as error:
            advice = f"take it away, and it is fetched; what you unpack to {folder} yourself is used as it is"
            raise DataError(by_hand, f"{str(error).removeprefix(f'{error.path}: ')}; {advice}") from error
        return
    advice = f"fetch it by hand to {by_hand} or, unpacked, to {folder}, or name another place with --data_url"
    if not ours.exists():
        sha256 = archive.fetch_sha256(f"{url}.sha256")
        archive.fetch(url, ours, sha256=sha256, limit=known.most_bytes, advice=advice)
    try:
        _unpack(ours, known, folder)
    except DataError as error:
        refused = path / f"{name}.zip.refused"
        os.replace(ours, refused)
        what = str(error).removeprefix(f"{error.path}: ")
        raise DataError(url, f"{what}; kept as {refused}, the same command fetches it again, or {advice}") from error
    ours.unlink()


def _unpack(source: Path, known: BuiltIn, folder: Path, extra: tuple[str, ...] = ()) -> None:
    """Make `folder` of an archive whose content is that of the table; `extra` files lie beside the archive."""
    try:
        with whole_folders([folder]) as (made,):
            archive.unpack(source, made, limit=known.most_bytes)
            for file in extra:
                shutil.copyfile(source.with_name(file), made / file)
            _verify(made, source, known)
    except OSError as error:
        if not (isinstance(error, FileExistsError) and _has_train(folder)):  # else another process was faster
            raise KgdistError(f"{folder}: cannot be written ({error.strerror or error})") from error


def _verify(folder: Path, source: Path, known: BuiltIn) -> None:
    """Compare the counts of lines and the digests with the table. Raises DataError naming `source`."""

    def expect(what: str, found: int, expected: int) -> None:
        if found != expected:
            raise DataError(source, f"it has {found:,} {what}, this data set has {expected:,}")

    counts = []
    for split in SPLITS:
        file = folder / f"{split}.txt"
        if not file.is_file():
            raise DataError(source, f"it has no {file.name}, found {', '.join(sorted(os.listdir(folder)))[:200]}")
        counts.append(_count_lines(file))
    for count, split, expected in zip(counts, SPLITS, known.splits or (), strict=False):
        expect(f"triples in {split}.txt", count, expected)
    expect("triples", sum(counts), known.triples)
    for plain, counted, what, expected in (
        ("entities.dict", "entity2id.txt", "entities", known.entities),
        ("relations.dict", "relation2id.txt", "relations", known.relations),
    ):
        if (folder / plain).is_file():
            expect(what, _count_lines(folder / plain), expected)
        elif (folder / counted).is_file():
            with (folder / counted).open("rb") as file_of_ids:
                first = file_of_ids.readline(64).strip()
            expect(what, int(first) if first.isdigit() else 0, expected)
        else:
            raise DataError(source, f"it has neither {plain} nor {counted}")
    for split, digest in zip(SPLITS, known.digests or (), strict=False):
        if (own := _digest(folder / f"{split}.txt")) != digest:
            message = (
                f"its {split}.txt holds other triples: the sha256 of its sorted lines is {own}, that of this data set {digest}"
            )
            raise DataError(source, message)


def _digest(path: Path) -> str:
    """sha256 of the lines in the order of their bytes, each ended by one line feed: neither the order of triples nor the kind of
    line ends is content, and mirrors differ in both."""
    lines = (line.rstrip(b"\r\n") for line in path.read_bytes().split(b"\n"))
    return hashlib.sha256(b"".join(line + b"\n" for line in sorted(filter(None, lines)))).hexdigest()


def _count_lines(path: Path) -> int:
    """Lines, the last one with or without its end."""
    count, last = 0, b"\n"
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            count += piece.count(b"\n")
            last = piece[-1:]
        return count + (last != b"\n")


def _has_train(folder: Path) -> bool:
    with contextlib.suppress(OSError, ValueError):
        return split_file(folder, "train") is not None
    return False


def _base(data_url: str | None) -> str:
    """Where archives lie, without a slash at the end. Raises OptionError."""
    url = (data_url or USUAL_PLACE).rstrip("/")
    try:
        parts = urllib.parse.urlsplit(url)
        sound = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
        sound = sound and parts.username is None and not parts.query and not parts.fragment
    except ValueError:
        sound = False
    if not sound or not all("!" <= letter <= "~" for letter in url):
        raise OptionError("--data_url", f"{data_url!r} is not an address like https://example.org/folder that holds NAME.zip")
    return url


def _readable_on_the_way(base: str) -> bool:
    """Whether others can change what comes from there: plain HTTP that leaves this machine."""
    parts = urllib.parse.urlsplit(base)
    with contextlib.suppress(ValueError):
        return parts.scheme == "http" and not ipaddress.ip_address(parts.hostname or "").is_loopback
    return parts.scheme == "http" and parts.hostname != "localhost"


def _unknown(name: str, path: Path) -> OptionError:
    lower = {known.lower(): known for known in BUILTIN}
    close = difflib.get_close_matches(name.lower(), lower, n=1)
    maybe = f"did you mean {lower[close[0]]}? " if close else ""
    with contextlib.suppress(UsageError, ValueError, OSError):  # names that no folder can have
        if _has_train(safe_join(".", name)):
            maybe = f"the folder {name} is here: give --data_path .; "
    return OptionError(
        "--dataset",
        f"{name!r} is neither a built-in set nor a folder of {path} with train.txt, .tsv or .parquet; {maybe}"
        f"built in are {', '.join(BUILTIN)}; for files of your own give --format raw_udd_hrt --data_files TRAIN [VALID TEST]",
    )
