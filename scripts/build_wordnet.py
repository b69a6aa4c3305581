#!/usr/bin/env python3
"""WordNet 3.0 -> the graph `wordnet` that ships in kgdist/data/builtin/wordnet, reproducibly.

    apt-get install wordnet-base
    python scripts/build_wordnet.py [--source /usr/share/wordnet] [--out kgdist/data/builtin/wordnet]

Entities are synsets, relations are pointers between them; what is kept, and why, is in
kgdist/data/builtin/wordnet/README.md. Nothing here is random: the split orders triples by a hash of their names, so that every
machine and every release of Python makes the same files.
"""

from __future__ import annotations

import argparse
import hashlib
import zipfile
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

# One direction of every inverse pair (the other one would give test triples away), and both of a symmetric relation.
RELATIONS = {
    "@": "hypernym",
    "@i": "instance_hypernym",
    "%m": "member_meronym",
    "%p": "has_part",
    "%s": "substance_meronym",
    "*": "entailment",
    ">": "cause",
    ";c": "synset_domain_topic_of",
    ";r": "synset_domain_region_of",
    ";u": "synset_domain_usage_of",
    "&": "similar_to",
    "^": "also_see",
    "$": "verb_group",
    "=": "attribute",  # both directions are in WordNet; the noun's is kept
    "+": "derivationally_related_form",  # between two words; lifted to their synsets, as in WN18
}
SUFFIX = {"noun": "n", "verb": "v", "adj": "a", "adv": "r"}
LEAST_NEIGHBOURS = 3
HELD_OUT = 3000  # triples, for validation and for testing each
SEED = "kgdist wordnet 1"
STAMP = (1980, 1, 1, 0, 0, 0)  # the earliest time a zip file can carry

Synset = tuple[str, str]  # part of speech (n v a r), offset: the key of the database
Triple = tuple[str, str, str]  # names


def read_pointers(source: Path) -> tuple[dict[Synset, tuple[str, str]], list[tuple[Synset, str, Synset]]]:
    """All synsets -> (first word, type letter), and all pointers of RELATIONS. The format is wndb(5WN)."""
    synsets: dict[Synset, tuple[str, str]] = {}
    pointers: list[tuple[Synset, str, Synset]] = []
    for part, letter in SUFFIX.items():
        for line in (source / f"data.{part}").read_text(encoding="ascii").splitlines():
            if line.startswith(" "):
                continue  # the licence
            fields = line.partition(" | ")[0].split()
            this = (letter, fields[0])
            word = fields[4].partition("(")[0]  # without the syntactic marker of an adjective
            synsets[this] = (word.lower(), fields[2])
            at = 4 + 2 * int(fields[3], 16)
            for p in range(int(fields[at])):
                symbol, offset, other, words = fields[at + 1 + 4 * p : at + 5 + 4 * p]
                lexical = words != "0000"
                if symbol in RELATIONS and lexical == (symbol == "+") and not (symbol == "=" and letter != "n"):
                    pointers.append((this, RELATIONS[symbol], (other, offset)))
    return synsets, pointers


def name_synsets(source: Path, synsets: dict[Synset, tuple[str, str]]) -> dict[Synset, str]:
    """`first_word.type.sense`, as in `dog.n.01`: the sense number is the synset's place in the index entry of its first word."""
    senses: dict[tuple[str, str], list[str]] = {}
    for part, letter in SUFFIX.items():
        for line in (source / f"index.{part}").read_text(encoding="ascii").splitlines():
            if not line.startswith(" "):
                fields = line.split()
                senses[letter, fields[0]] = fields[-int(fields[2]) :]
    names = {
        (letter, offset): f"{word}.{kind}.{senses[letter, word].index(offset) + 1:02d}"
        for (letter, offset), (word, kind) in synsets.items()
    }
    assert len(set(names.values())) == len(names), "two synsets share a name"
    return names


def neighbours(triples: Iterable[Triple]) -> dict[str, set[str]]:
    """The undirected graph."""
    near: dict[str, set[str]] = defaultdict(set)
    for head, _, tail in triples:
        near[head].add(tail)
        near[tail].add(head)
    return near


def largest_component(near: dict[str, set[str]], alive: set[str]) -> set[str]:
    """The largest connected part of the graph on the nodes `alive`."""
    best: set[str] = set()
    rest = set(alive)
    for start in sorted(alive):
        if start not in rest:
            continue
        part, edge = {start}, [start]
        while edge:
            fresh = (near[edge.pop()] & rest) - part
            part |= fresh
            edge += fresh
        rest -= part
        best = max(best, part, key=len)
    return best


def two_core(near: dict[str, set[str]], alive: set[str]) -> set[str]:
    """What is left when nodes with fewer than two neighbours are taken away until there are none."""
    alive = set(alive)
    weak = [node for node in alive if len(near[node] & alive) < 2]
    while weak:
        node = weak.pop()
        if node in alive:
            alive.remove(node)
            weak += [other for other in near[node] & alive if len(near[other] & alive) < 2]
    return alive


def split(triples: Iterable[Triple]) -> dict[str, list[Triple]]:
    """train, valid, test: drawn triple by triple, as WN18RR's; every entity keeps a triple in train."""
    order = sorted(triples, key=lambda triple: hashlib.sha256("\t".join((SEED, *triple)).encode()).digest())
    left = Counter(end for head, _, tail in order for end in (head, tail))
    parts: dict[str, list[Triple]] = {"train": [], "valid": [], "test": []}
    for triple in order:
        ends = {triple[0], triple[2]}
        spare = min(left[end] for end in ends) > 1
        part = next((part for part in ("test", "valid") if spare and len(parts[part]) < HELD_OUT), "train")
        parts[part].append(triple)
        if part != "train":
            left.subtract(ends)
    return {part: sorted(rows) for part, rows in parts.items()}


def build(source: Path) -> dict[str, bytes]:
    """The files of the graph: name -> bytes."""
    synsets, pointers = read_pointers(source)
    names = name_synsets(source, synsets)
    triples = sorted({(names[a], relation, names[b]) for a, relation, b in pointers if a != b})
    near = neighbours(triples)
    rich = {node for node, others in near.items() if len(others) >= LEAST_NEIGHBOURS}
    kept = two_core(near, largest_component(near, rich))
    triples = [row for row in triples if row[0] in kept and row[2] in kept]
    parts = split(triples)
    files = {f"{part}.txt": lines("\t".join(row) for row in rows) for part, rows in parts.items()}
    files["entities.dict"] = lines(f"{i}\t{name}" for i, name in enumerate(sorted(kept)))
    files["relations.dict"] = lines(f"{i}\t{name}" for i, name in enumerate(sorted({row[1] for row in triples})))
    return dict(sorted(files.items()))


def lines(rows: Iterable[str]) -> bytes:
    return "".join(row + "\n" for row in rows).encode()


def licence(source: Path) -> bytes:
    """WordNet's terms, which stand at the top of each of its files with numbered lines."""
    head = (source / "data.noun").read_text(encoding="ascii").splitlines()[:29]
    return lines(line[4:].rstrip() for line in head)


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the packaged graph `wordnet` from the files of WordNet 3.0.")
    parser.add_argument("--source", type=Path, default=Path("/usr/share/wordnet"), help="folder of data.noun, index.noun, ...")
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parents[1] / "kgdist/data/builtin/wordnet")
    options = parser.parse_args()
    files = build(options.source)
    options.out.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(options.out / "wordnet.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, content in files.items():
            info = zipfile.ZipInfo(f"wordnet/{name}", STAMP)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = 0o644 << 16
            archive.writestr(info, content, compresslevel=9)
            print(f"{name:16} {content.count(10):>8,} lines  sha256 {hashlib.sha256(content).hexdigest()}")
    (options.out / "LICENSE").write_bytes(licence(options.source))
    print(f"wordnet.zip      {(options.out / 'wordnet.zip').stat().st_size:>8,} bytes")


if __name__ == "__main__":
    main()
