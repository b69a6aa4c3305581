"""What other tools read: embeddings of a run (`targets.export`), graphs (`graph.convert`, `layouts.layout`), and the way
back: models of other tools as runs (`foreign`). One small file per format. Nothing here trains or scores."""
