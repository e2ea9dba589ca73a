"""The routes of a service in OpenAPI's format, and a page that shows them without a network."""

from typing import Any

import msgspec

from offramp import __version__
from offramp.serving.requests import JSON, Parser

_ANSWER = {
    "type": "object",
    "required": ["id", "confidence", "likely_wrong", "exit", "cost"],
    "properties": {
        "id": {"description": "the client's name for the request"},
        "class": {"type": "integer"},
        "name": {"type": ["string", "null"], "description": "of the class"},
        "answer": {"description": "of a cascade, in place of the class"},
        "confidence": {"type": ["number", "null"], "description": "probability of being right"},
        "likely_wrong": {"type": "boolean"},
        "exit": {"type": "integer"},
        "cost": {"type": "number", "description": "share of the cost without exits"},
    },
}
_REFUSALS = {
    400: "The body is not valid JSON.",
    401: "The key is missing or wrong.",
    408: "The body did not arrive in time.",
    413: "The body or the image is too large.",
    415: "The content type is unknown.",
    422: "Fields, shapes or numbers do not fit.",
    429: "Too many wrong keys; `Retry-After` says when to come back.",
    500: "A fault of the server; its log has the request's id.",
    503: "Too many requests; `Retry-After` says when to come back.",
    504: "No answer in time.",
}
_OTHERS = {
    ("get", "/health/live"): "Whether the process should go on; else it should be started again.",
    ("get", "/health/ready"): "Whether requests are answered.",
    ("get", "/info"): "What is served: exits, classes, budget, fingerprints.",
    ("get", "/metrics"): "For Prometheus.",
    ("put", "/admin/budget"): 'Change the budget: {"budget": SHARE}.',
    ("post", "/admin/reload"): "Read the folders again, all of them or none.",
}


def described(parser: Parser) -> dict[str, Any]:
    """The routes of a service that takes these requests, as an OpenAPI document."""
    (body,), components = msgspec.json.schema_components(
        [parser.body], ref_template="#/components/schemas/{name}"
    )
    content = {kind: {"schema": {"type": "string", "format": "binary"}} for kind in parser.types}
    content[JSON] = {"schema": body}
    refused = {str(status): {"description": text} for status, text in _REFUSALS.items()}
    answered = {"description": "The answer.", "content": {JSON: {"schema": _ANSWER}}}
    predict = {
        "summary": "Answer one sample.",
        "requestBody": {"required": True, "content": content},
        "responses": {"200": answered, **refused},
        "security": [{"key": []}],
    }
    paths: dict[str, Any] = {"/predict": {"post": predict}}
    for (method, path), text in _OTHERS.items():
        paths[path] = {method: {"summary": text, "responses": {"200": {"description": "Done."}}}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "offramp", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "apiKey", "in": "header", "name": "X-API-Key"}},
        },
    }


PAGE = """<!doctype html><meta charset="utf-8"><title>offramp</title>
<style>body{font:16px/1.5 sans-serif;max-width:60em;margin:2em auto;padding:0 1em}
pre{background:#f4f4f4;padding:1em;overflow:auto}summary{cursor:pointer}</style>
<h1>offramp</h1><p>As a document for tools: <a href="openapi.json">openapi.json</a>.</p>
<div id="routes"></div><script>
fetch("openapi.json").then(found => found.json()).then(document_ => {
  for (const [path, methods] of Object.entries(document_.paths))
    for (const [method, route] of Object.entries(methods)) {
      const part = document.createElement("details"), head = document.createElement("summary");
      const text = document.createElement("pre");
      head.textContent = method.toUpperCase() + " " + path + ": " + route.summary;
      const body = route.requestBody ? {requestBody: route.requestBody} : {};
      text.textContent = JSON.stringify({...body, responses: route.responses}, null, 1);
      part.append(head, text);
      document.getElementById("routes").append(part);
    }
});
</script>
"""
