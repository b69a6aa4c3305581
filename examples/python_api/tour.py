"""A training from Python, and what can be done with it: `python tour.py`."""

import kgdist

# Triples in memory: rows, a NumPy array, or a pandas, polars or pyarrow table; names, or ids. Here, a family.
parents = {"ada": "eve", "ben": "eve", "cid": "fay", "dan": "fay", "eve": "gus", "fay": "gus", "hal": "ivy", "jon": "ivy"}
triples = [(child, "child_of", parent) for child, parent in {**parents, "ivy": "gus"}.items()]
triples += [(parent, "parent_of", child) for child, _, parent in triples]
triples += [(one, "sibling_of", two) for one in parents for two in parents if one != two and parents[one] == parents[two]]
held_out = [("eve", "parent_of", "ben"), ("dan", "child_of", "fay"), ("jon", "sibling_of", "hal")]
known = [triple for triple in triples if triple not in held_out]


def watch(event):
    """A callback: hears of the training while it runs, and ends it when it is good enough."""
    if isinstance(event, kgdist.Progress):
        print(f"step {event.step} of {event.total}: loss {event.loss:.3f}")
    elif isinstance(event, kgdist.Validation) and event.mrr > 0.95:
        print(f"good enough: MRR {event.mrr:.2f} of what was held out")
        return kgdist.STOP


# Every option of kgdist-train, by name. The run is a folder, as the command makes it, and can be loaded at any time.
run = kgdist.train(
    known,
    valid=held_out,
    model_name="RotatE",
    hidden_dim=16,
    gamma=6,
    lr=0.1,
    batch_size=16,
    neg_sample_size=8,
    neg_adversarial_sampling=True,
    max_step=2000,
    log_interval=200,
    eval_interval=200,
    quiet=True,
    callbacks=[watch],
)
run = kgdist.load(run.path)
print(run)

# Ask it, by name or by id. Answers are tables: columns, named tuples, .to_pandas(), .to_arrow().
print(run.predict(head="dan", relation="child_of", k=3))
for row in run.predict(relation="parent_of", tail=["ben", "ivy"], k=1):
    print(f"a parent of {row.tail} is likely {row.head} (score {row.score:.2f})")
print(run.score("dan", "child_of", ["fay", "gus", "ivy"]))

# Ranks among all entities, other known triples left out; and embeddings by name, memory-mapped.
result = run.evaluate("valid")
print(f"MRR {result.mrr:.2f}, hits@1 {result.hits1:.2f}, heads alone {result['sides']['head']['realistic']['mrr']:.2f}")
print(run.entity_embeddings["ada"].shape, run.similar("hal", k=2)["right"])

# The same in the manner of scikit-learn.
embedder = kgdist.KGEmbedder("RotatE", hidden_dim=16, gamma=6, batch_size=16, neg_sample_size=8, max_epoch=200).fit(known)
print(embedder.predict([("dan", "child_of"), ("ben", "child_of")]), round(embedder.score(held_out), 2))
