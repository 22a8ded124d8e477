"""Describes what requests may hold: the same description checks them and makes the document of OpenAPI."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from keras_transformer.core.schema import PLAIN, Schema, list_of, number, object_of, or_null, text, whole
from keras_transformer.core.version import __version__
from keras_transformer.serving.batching import Refusal

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

JSON: TypeAlias = Any  # what enters and leaves as JSON
OWN, LIBRE, OPENAI = "own", "libretranslate", "openai"  # the shapes of errors
SHORT = 200  # characters of a name
NAME = re.compile(rf"[A-Za-z0-9._:/-]{{1,{SHORT}}}")
STRING, INTEGER, NUMBER, BOOLEAN, OBJECT = (
    {"type": name} for name in ("string", "integer", "number", "boolean", "object")
)


@dataclass(frozen=True)
class Field:
    """A value of a request.

    Args:
        allowed: what it may be.
        told: the same for OpenAPI, in JSON Schema.
        is_required: whether it must be given.
        default: its value where it is not given, or null.
        most_characters: of it, or of each text in it; what is longer is refused by 413.
        most_items: of a list; more are refused by 413.
    """

    allowed: Schema
    told: dict[str, JSON]
    is_required: bool = False
    default: JSON = None
    most_characters: int | None = None
    most_items: int | None = None

    def require_size(self, name: str, value: JSON) -> None:
        """Raises Refusal for a text, or a list, that is longer than the server takes."""
        items = value if isinstance(value, list) else [value]
        if self.most_items is not None and len(items) > self.most_items:
            raise Refusal(
                413, "too_long", f"expected at most {self.most_items:,} items under '{name}'; received {len(items):,}"
            )
        longest = max((len(item) for item in items if isinstance(item, str)), default=0)
        if self.most_characters is not None and longest > self.most_characters:
            raise Refusal(
                413, "too_long",
                f"expected texts of at most {self.most_characters:,} characters under '{name}'; received one of "
                f"{longest:,}: divide it",
            )  # fmt: skip


def a_text(told: str, most: int, required: bool = False) -> Field:
    """Describes a text."""
    return Field(PLAIN[str], {**STRING, "maxLength": most, "description": told}, required, None, most)


def text_or(other: Schema, told: str) -> Schema:
    """Allows a text, and what another schema does, which `told` says in words."""
    return Schema(
        f"a text, or {told}",
        lambda value: isinstance(value, str) or other.holds(value),
        lambda value, place: () if isinstance(value, str) else other.parts(value, place),
    )


def some_texts(told: str, most: int, most_items: int, required: bool = True) -> Field:
    """Describes a text, or a list of texts."""
    least, one = int(required), {**STRING, "maxLength": most}
    either = text_or(list_of(str, least), "a list of texts")
    schema = {"anyOf": [one, several(one, least, most_items)], "description": told}
    return Field(either, schema, required, None, most, most_items)


def a_list(told: str, each: Schema, each_told: dict[str, JSON], most_items: int) -> Field:
    """Describes a list of values, which must be given."""
    schema = {**several(each_told, 1, most_items), "description": told}
    return Field(list_of(each, 1), schema, True, None, None, most_items)


def a_name(told: str, required: bool = False, default: str | None = None) -> Field:
    """Describes the name of a model, or the code of a language."""
    schema = {**STRING, "pattern": f"^{NAME.pattern}$", "description": told}
    allowed = text(NAME, f"1 to {SHORT} letters, digits or . _ : / -")
    return Field(allowed, schema, required, default)


def a_whole(told: str, least: int, most: int, default: int | None = None) -> Field:
    """Describes a whole number."""
    schema = {**INTEGER, "minimum": least, "maximum": most, "description": told}
    return Field(whole(least, most), schema, False, default)


def a_number(told: str, least: float, most: float, default: float | None = None) -> Field:
    """Describes a number."""
    schema = {**NUMBER, "minimum": least, "maximum": most, "description": told}
    return Field(number(least, most), schema, False, default)


def a_flag(told: str) -> Field:
    """Describes a choice that is not made unless it is given as true."""
    return Field(PLAIN[bool], {**BOOLEAN, "description": told}, False, False)


def a_value(told: str, *allowed: JSON) -> Field:
    """Describes one of some values, of which the first is the default; any value, which nobody reads, if none is
    given."""
    if not allowed:
        return Field(PLAIN[object], {"description": told})
    known = [(isinstance(one, bool), one) for one in allowed]  # true is 1 in Python
    either = Schema(" or ".join(map(json.dumps, allowed)), lambda value: (isinstance(value, bool), value) in known)
    return Field(either, {"enum": [*allowed], "description": told}, False, allowed[0])


@dataclass(frozen=True)
class Body:
    """The body of a request: an object.

    Args:
        name: in the document.
        fields: its values by their names.
        takes_others: whether other names may be there, which nobody reads.
    """

    name: str
    fields: Mapping[str, Field]
    takes_others: bool = False

    def read(self, value: JSON) -> dict[str, JSON]:
        """Returns all values; the defaults of those that are not given.

        Raises:
            Mismatch: a value is not allowed.
            Refusal: a value is larger than the server takes.
        """
        required = {name: its.allowed for name, its in self.fields.items() if its.is_required}
        optional = {name: or_null(its.allowed) for name, its in self.fields.items() if not its.is_required}
        others = {"others": object, "names": str} if self.takes_others else {}
        checked = object_of(required, optional, **others).checked(value)
        given = {name: its.default for name, its in self.fields.items()}
        given |= {name: checked[name] for name in self.fields if checked.get(name) is not None}
        for name, its in self.fields.items():
            its.require_size(name, given[name])
        return given

    def json_schema(self) -> dict[str, JSON]:
        """Returns the description in JSON Schema."""
        return {
            "type": "object",
            "properties": {
                name: its.told if its.default is None else {**its.told, "default": its.default}
                for name, its in self.fields.items()
            },
            "required": [name for name, its in self.fields.items() if its.is_required],
            "additionalProperties": self.takes_others,
        }


def shape(*optional: str, **properties: dict[str, JSON]) -> dict[str, JSON]:
    """Returns the JSON Schema of an object that is answered; all of its values are there but for the optional ones."""
    return {
        "type": "object", "properties": properties, "required": [one for one in properties if one not in optional]
    }  # fmt: skip


def several(each: dict[str, JSON], least: int = 0, most: int | None = None) -> dict[str, JSON]:
    """Returns the JSON Schema of a list."""
    return {"type": "array", "items": each, "minItems": least, **({"maxItems": most} if most else {})}


def nullable(one: dict[str, JSON]) -> dict[str, JSON]:
    """Returns the JSON Schema of a value that may be null."""
    return {"anyOf": [one, {"type": "null"}]}


ERRORS = {
    OWN: shape(error=shape(code=STRING, message=STRING, request_id=STRING)),
    LIBRE: shape(error=STRING),
    OPENAI: shape(error=shape(message=STRING, type=STRING, param=nullable(STRING), code=STRING)),
}


@dataclass(frozen=True)
class Door:
    """A route.

    Args:
        method: of HTTP.
        path: where it is.
        summary: what it does, for the document.
        answer: answers a request, of which it gets the values of the body.
        gives: the JSON Schema of its answer.
        body: what it takes.
        errors: the shape of its errors. As LibreTranslate's, the body may be a form, and holds the key.
        needs_key: whether it needs a key, where the server has keys.
        needs_models: whether it is refused while models are loaded, and while the server ends.
        media_type: of its answer.
    """

    method: str
    path: str
    summary: str
    answer: Callable[[Request, dict[str, JSON]], Awaitable[Response]]
    gives: dict[str, JSON]
    body: Body | None = None
    errors: str = OWN
    needs_key: bool = True
    needs_models: bool = True
    media_type: str = "application/json"


WHY = {
    400: "The request is wrong.", 401: "A key is missing or wrong.", 403: "A key is missing or wrong.",
    404: "There is no such model.", 408: "The body came too slowly.", 413: "The request is too large.",
    415: "The body is not of a type that is taken.", 421: "The name of the host is not this server's.",
    429: "Too much waits, or the key's rate is reached; Retry-After tells when to try again.",
    500: "The model, or the server, failed.", 503: "The models are loaded, or the server ends.",
    504: "The answer took too long.",
}  # fmt: skip


def openapi(doors: Sequence[Door], prefix: str, seconds: float, most_bytes: int) -> dict[str, JSON]:
    """Returns the document of OpenAPI 3.1 that describes routes."""
    told = (
        f"A request has at most {most_bytes:,} bytes, and is answered within {seconds:g} seconds or refused by 504. "
        "Texts are never cut: what is too long is refused by 413."
    )
    paths: dict[str, JSON] = {}
    for door in doors:
        paths.setdefault(door.path, {})[door.method.lower()] = dict(_operation(door))
    keys = {
        "bearer": {"type": "http", "scheme": "bearer"},
        "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
    }
    bodies = {door.body.name: door.body.json_schema() for door in doors if door.body}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Keras Transformer", "version": __version__, "description": told},
        "servers": [{"url": prefix or "/"}],
        "paths": paths,
        "components": {
            "schemas": {**bodies, **{f"error_{name}": ERRORS[name] for name in ERRORS}},
            "securitySchemes": keys,
        },
    }


def _operation(door: Door) -> Iterator[tuple[str, JSON]]:
    yield "summary", door.summary
    yield "operationId", f"{door.method}_{door.path}".lower().replace("/", "_").replace(".", "_")
    if door.needs_key:
        yield "security", [{}, {"bearer": []}, {"key": []}]
    types = ["application/json"]
    if door.errors == LIBRE:
        types += ["application/x-www-form-urlencoded", "multipart/form-data"]
    if door.body:
        schema = {"schema": {"$ref": f"#/components/schemas/{door.body.name}"}}
        yield "requestBody", {"required": True, "content": dict.fromkeys(types, schema)}
    content = {door.media_type: {"schema": door.gives}}
    if door.body and "stream" in door.body.fields:
        content["text/event-stream"] = {"schema": STRING}
    answers: dict[str, JSON] = {"200": {"description": "The answer.", "content": content}}
    error = {"application/json": {"schema": {"$ref": f"#/components/schemas/error_{door.errors}"}}}
    answers |= {str(status): {"description": why, "content": error} for status, why in WHY.items()}
    yield "responses", answers
