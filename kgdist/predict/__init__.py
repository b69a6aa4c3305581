"""Asking a trained run: likely triples, similar embeddings, what a score means."""
