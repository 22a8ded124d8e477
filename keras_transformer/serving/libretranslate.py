"""Answers the API of LibreTranslate, which many clients speak."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from keras_transformer.core.errors import RequestError
from keras_transformer.core.schema import Schema, whole
from keras_transformer.serving import described as a
from keras_transformer.serving.choosing import AUTO, LANGUAGE_NAMES, choices, detect_all, language_of, short_codes
from keras_transformer.serving.described import JSON, LIBRE, Body, Door, Field
from keras_transformer.serving.hosting import Limits
from keras_transformer.serving.own_api import as_list, submitted
from keras_transformer.serving.service import service_of
from keras_transformer.serving.wire import answers_of

FRONTEND_MILLISECONDS = 500  # for which its page waits while someone types


def libre_doors(limits: Limits) -> list[Door]:
    """Returns the routes of LibreTranslate's API."""
    key = a.a_text("A key, where the server has keys.", a.SHORT)
    detect_body = Body("libre_detect", {"q": _texts("A text.", limits), "api_key": key}, takes_others=True)
    return [
        Door(
            "POST", "/translate", "Translates texts, as LibreTranslate does.", translate, a.OBJECT,
            translate_body(limits, key), LIBRE,
        ),
        Door(
            "POST", "/detect", "Tells the language of a text, as LibreTranslate does.", detect, a.several(a.OBJECT),
            detect_body, LIBRE,
        ),
        Door(
            "GET", "/languages", "Tells the languages, as LibreTranslate does.", tell_languages, a.several(a.OBJECT),
            errors=LIBRE, needs_key=False,
        ),
        Door(
            "GET", "/frontend/settings", "Tells limits, as LibreTranslate does.", tell_settings, a.OBJECT,
            errors=LIBRE, needs_key=False,
        ),
        Door(
            "GET", "/health", "Tells that the server runs, as LibreTranslate does.", tell_health, a.OBJECT,
            errors=LIBRE, needs_key=False, needs_models=False,
        ),
    ]  # fmt: skip


def _texts(told: str, limits: Limits) -> Field:
    return a.some_texts(told, limits.max_characters, limits.max_texts)


def translate_body(limits: Limits, key: Field) -> Body:
    """Describes what `/translate` takes. Forms have numbers as text."""
    most = limits.max_beams - 1
    texts = [*map(str, range(most + 1))]
    number = Schema(f"a whole number from 0 to {most}", lambda value: whole(0, most).holds(value) or value in texts)
    told = {"anyOf": [{**a.INTEGER, "minimum": 0, "maximum": most}, {"enum": texts}], "default": 0}
    others = Field(number, {**told, "description": "Further translations of each text."}, default=0)
    fields = {
        "q": _texts("What to translate.", limits),
        "source": a.a_name('The language of the texts; "auto" is what each seems to be in.', required=True),
        "target": a.a_name("The language of the translations.", required=True),
        "format": a.a_value("Only text: markup is not understood yet.", "text", "html", ""),
        "alternatives": others,
        "api_key": key,
    }
    return Body("libre_translate", fields, takes_others=True)


async def translate(http: Request, given: dict[str, JSON]) -> Response:
    """Answers `/translate`."""
    if given["format"] == "html":
        raise RequestError("html format is not supported: this server does not understand markup yet, so send text")
    service, texts, num_others = service_of(http), as_list(given["q"]), int(given["alternatives"])
    chosen = await choices(service, texts, None, given["source"], given["target"])
    beams = max(num_others + 1, *(choice.engine.options().num_beams for choice in chosen)) if num_others else None
    work = await submitted(http, texts, chosen, beams, num_others + 1)
    found = await answers_of(http, work)
    told: dict[str, JSON] = {"translatedText": [nbest[0].text for nbest in found]}
    if given["source"] == AUTO:
        codes = short_codes(service.languages())
        told["detectedLanguage"] = [_detected(codes, *choice.found) for choice in chosen if choice.found]
    if num_others:
        told["alternatives"] = [_others([one.text for one in nbest]) for nbest in found]
    is_list = isinstance(given["q"], list)
    return JSONResponse(told if is_list else {name: values[0] for name, values in told.items() if values})


def _others(texts: list[str]) -> list[str]:
    return [text for text in dict.fromkeys(texts) if text and text != texts[0]]


def _detected(codes: Mapping[str, str], language: str, share: float) -> dict[str, JSON]:
    return {"confidence": round(100 * float(share), 1), "language": codes[language]}


async def detect(http: Request, given: dict[str, JSON]) -> Response:
    """Answers `/detect`: what a text, or a list as one text, seems to be in, the likeliest first."""
    service = service_of(http)
    [found] = await asyncio.to_thread(detect_all, service, ["\n".join(as_list(given["q"]))])
    codes = short_codes(service.languages())
    return JSONResponse([_detected(codes, *one) for one in found.candidates])


async def tell_languages(http: Request, given: dict[str, JSON]) -> Response:
    """Answers `/languages`."""
    service = service_of(http)
    codes = short_codes(service.languages())
    targets: dict[str, dict[str, None]] = {}
    for source, target in service.pairs():
        targets.setdefault(codes[source], {})[codes[target]] = None
    for code in codes.values():
        targets.setdefault(code, {})
    return JSONResponse([{**_language(code), "targets": [*some]} for code, some in targets.items()])


def _language(code: str) -> dict[str, str]:
    return {"code": code, "name": LANGUAGE_NAMES.get(language_of(code), code)}


async def tell_settings(http: Request, given: dict[str, JSON]) -> Response:
    """Answers `/frontend/settings`."""
    service = service_of(http)
    source, target = next(iter(service.pairs()), ("", ""))
    codes = {"": "", **short_codes(service.languages())}
    has_keys = service.keys is not None
    told = {
        "charLimit": service.limits.max_characters,
        "frontendTimeout": FRONTEND_MILLISECONDS,
        "apiKeys": has_keys,
        "keyRequired": has_keys,
        "suggestions": False,
        "filesTranslation": False,
        "supportedFilesFormat": [],
        "language": {"source": _language(codes[source]), "target": _language(codes[target])},
    }
    return JSONResponse(told)


async def tell_health(http: Request, given: dict[str, JSON]) -> Response:
    """Answers `/health`."""
    return JSONResponse({"status": "ok"})
