"""The interface as OpenAPI 3.1 has it, for programs that make clients; docs/serving.md says it to people."""

from __future__ import annotations

from typing import Any

from kgdist.options.tools import ServeOptions
from kgdist.predict.similar import MEASURES
from kgdist.serve.live import KINDS
from kgdist.version import __version__

STATUSES = {
    "400": "the request cannot be: no JSON, a wrong word, a k that is too large",
    "401": "the token is missing or wrong",
    "404": "a name is not known; names like it are in near",
    "408": "the body did not come in time",
    "409": "known facts cannot be left out, for the run's data are not there; or several have this label, and are in near",
    "413": "the body is too large",
    "422": "the run has no answer: a score is not a number",
    "503": "too much is asked at the moment, or it took too long; ask again",
}
_NAME = {"type": "string"}
_LABEL = {"type": ["string", "null"]}  # of a run that has labels


def description(options: ServeOptions) -> dict[str, Any]:
    """The document, with the limits of this server."""
    k = {"type": "integer", "minimum": 1, "maximum": options.max_k, "default": min(10, options.max_k)}
    ends = {"head": _NAME, "relation": _NAME, "tail": _NAME}
    named = {**ends, **{f"{end}_label": _LABEL for end in ends}}
    triple = {**named, "score": {"type": "number"}, "probability": {"type": "number"}, "known": {"type": "boolean"}}
    fact = _object({**named, "similarity": {"type": "number"}})
    point = {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2}
    kinds = {name: _NAME for name in KINDS} | {f"{name}_label": _LABEL for name in KINDS}
    near = {**kinds, "similarity": {"type": "number"}}
    ranks = {"head_rank": {"type": "integer"}, "tail_rank": {"type": "integer"}, "nearest_facts": _list(fact)}
    known = {"type": "boolean", "default": False}
    alike = {"entity": _NAME, "relation": _NAME, "k": k, "measure": {"enum": list(MEASURES)}, "map": known}
    paths = {
        "/predict": _asked(
            options,
            "The likeliest answers for the one of head, relation and tail that is not given.",
            {**ends, "k": k, "exclude_known": known},
            _object({"answers": _list(_object(triple))}),
        ),
        "/similar": _asked(
            options,
            "The most similar entities, or relations; with map: places in the plane, the asked one's first.",
            alike,
            _object({"answers": _list(_object(near)), "map": _list(point)}),
        ),
        "/score": _asked(options, "The scores of triples.", ends, _object(triple)),
        "/explain": _asked(
            options,
            "A triple's score, the ranks of its ends, and the known facts most like it.",
            ends,
            _object({**triple, **ranks}),
        ),
        "/entities": _looked(
            "Names that begin with q, then those that hold it, then those whose labels do; without q those of most triples.",
            {"q": _NAME, "kind": {"enum": ["entity", "relation"]}, "k": k},
            _object({"names": _list(_NAME), "labels": _list(_LABEL)}),
        ),
        "/facts": _looked(
            "The known facts of an entity.",
            {"entity": _NAME, "k": k},
            _object(
                {
                    "entity": _NAME,
                    "entity_label": _LABEL,
                    "facts": _list(_object(named)),
                    "as_head": {"type": "integer"},
                    "as_tail": {"type": "integer"},
                }
            ),
        ),
        "/healthz": _looked("Whether the server answers, and for what run.", {}, _object({"status": _NAME})),
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "kgdist-serve", "version": __version__},
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "security": [{"token": []}] if options.token_file is not None else [],
        "paths": paths,
    }


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def _list(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _responses(answer: dict[str, Any]) -> dict[str, Any]:
    error = _json(_object({"error": _NAME, "near": _list(_NAME)}))
    good = {"200": {"description": "the answer", **_json(answer)}}
    return good | {status: {"description": text, **error} for status, text in STATUSES.items()}


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"content": {"application/json": {"schema": schema}}}


def _looked(text: str, words: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    parameters = [{"name": name, "in": "query", "schema": schema} for name, schema in words.items()]
    return {"get": {"summary": text, "parameters": parameters, "responses": _responses(answer)}}


def _asked(options: ServeOptions, text: str, words: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    """One question by GET or POST, or several by POST: `questions`, for which the words beside it hold, too."""
    several = _object({**words, "questions": {**_list(_object(words)), "maxItems": options.max_questions}})
    both = {"anyOf": [answer, _object({"results": _list(answer)})]}
    post = {"summary": text, "requestBody": _json(several), "responses": _responses(both)}
    return {**_looked(text, words, answer), "post": post}
