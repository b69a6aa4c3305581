"""Whether the first line of a file names its columns, which --header auto asks and kgdist-inspect warns of."""

from __future__ import annotations

from collections.abc import Mapping

# What people call the columns of a triple.
COLUMNS = {
    "h": {"head", "h", "subject", "s", "source", "src", "from", "e1", "entity1", "start", "node1", "head_id", "subject_id"},
    "r": {"relation", "r", "rel", "predicate", "p", "relationship", "type", "edge", "label", "property", "relation_id"},
    "t": {"tail", "t", "object", "o", "target", "dst", "to", "e2", "entity2", "end", "node2", "tail_id", "object_id"},
}
# And those of a dictionary.
ENTRY = {"id", "name", "label", "entity", "relation", "entity_id", "relation_id", "entity_name", "relation_name"}


def names_columns(words: Mapping[str, str]) -> bool:
    """Whether the words that stand for head (h), relation (r) and tail (t) are names of columns: all three, or two that are more
    than a letter, which may be a name."""
    found = [word for letter, known in COLUMNS.items() if (word := words[letter].strip().lower()) in known]
    return len(found) == 3 or sum(len(word) > 1 for word in found) >= 2


def names_entry(words: list[str]) -> bool:
    """Whether the two words of a line are those of a dictionary's columns."""
    return len(words) == 2 and all(word.strip().lower() in ENTRY for word in words)
