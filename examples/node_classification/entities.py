"""literals.tsv as a file of entities that kgdist-preprocess takes: `python entities.py FOLDER OUT.jsonl`.

An entity is an object: of each predicate a number, a text, or a list of texts where some entity has several; and which predicates
it has. A predicate of which all values are the same is in the latter alone.
"""

import argparse
import csv
import json
from pathlib import Path

NUMBERS = {"double", "float", "decimal", "integer", "int", "long"}  # of XML Schema


def write_entities(folder, out):
    """Write the entities of a folder's literals.tsv into the file `out`."""
    entities, values, numeric, many = {}, {}, {}, set()
    with (folder / "literals.tsv").open(encoding="utf-8", newline="") as file:
        rows = csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        next(rows)  # the names of the columns
        for entity, predicate, datatype, value in rows:
            texts = entities.setdefault(entity, {}).setdefault(predicate, [])
            texts.append(value)
            if len(texts) > 1:
                many.add(predicate)
            values.setdefault(predicate, set()).add(value)
            numeric[predicate] = numeric.get(predicate, True) and datatype.rpartition("#")[2] in NUMBERS
    with out.open("w", encoding="utf-8") as file:
        for entity, given in entities.items():
            told = {"entity": entity, "has": sorted(given)}
            for predicate, texts in given.items():
                if len(values[predicate]) == 1:
                    continue
                if numeric[predicate]:
                    told[predicate] = sum(map(float, texts)) / len(texts)
                else:
                    told[predicate] = texts if predicate in many else texts[0]
            file.write(json.dumps(told, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "folder", type=Path, help="has literals.tsv: entity, predicate, datatype, value; a line names the columns"
    )
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    write_entities(args.folder, args.out)
