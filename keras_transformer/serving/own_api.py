"""Answers the server's own API: translations, texts that are continued, and what the models of other tasks tell."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from keras_transformer.core.errors import RequestError
from keras_transformer.core.schema import list_of
from keras_transformer.serving import described as a
from keras_transformer.serving.answering import AnswerEngine
from keras_transformer.serving.choosing import SURE, Choice, Divided, choices, detect_all, submitting
from keras_transformer.serving.described import JSON, Body, Door, Field
from keras_transformer.serving.generating import Generated, GenerationEngine
from keras_transformer.serving.hosting import Hosted, Limits
from keras_transformer.serving.service import service_of
from keras_transformer.serving.translating import TranslationEngine
from keras_transformer.serving.wire import Events, Work, answers_of, event

if TYPE_CHECKING:
    from keras_transformer.decoding.decoder import Hypothesis

MOST_STOPS, MOST_SEED, MOST_TOP = 16, 2**63 - 1, 1_000_000
MODEL_NAME = a.a_name("The name of a model; by default the first that fits.")
DRAWING = {
    "temperature": a.a_number("The logits are divided by it; 0 takes the likeliest token.", 0, 100),
    "top_k": a.a_whole("Tokens are drawn from the k likeliest; 0 is all.", 0, MOST_TOP),
    "top_p": a.a_number("Tokens are drawn from the likeliest that together reach p.", 1e-6, 1),
    "seed": a.a_whole("The same seed draws the same.", 0, MOST_SEED),
}
# The routes of models that neither translate nor write: what they do, and what they take beside their inputs.
ANSWERING: dict[str, tuple[str, dict[str, Field]]] = {
    "classify": ("Tells the labels of texts, or of images in Base64.", {}),
    "fill": (
        "Fills the places <mask> of texts.", {"n_best": a.a_whole("The most tokens for each place.", 1, 1_000)}
    ),
    "embed": ("Tells vectors of texts, or of histories.", {}),
    "recommend": (
        "Tells which items come next in histories.",
        {
            "count": a.a_whole("The most items for each.", 1, 1_000),
            "only_new": a.a_flag("Whether the items of the history itself are left out."),
        },
    ),
}  # fmt: skip
HISTORY = a.text_or(list_of(str), "a list of items")
HISTORY_TOLD = {"anyOf": [a.STRING, a.several(a.STRING)]}
MODEL = a.shape(
    name=a.STRING, task=a.STRING, source_language=a.nullable(a.STRING), target_language=a.nullable(a.STRING),
    pairs=a.several(a.several(a.STRING)), precision=a.STRING, sha=a.STRING,
    certificate=a.shape(holds=a.BOOLEAN, artefacts=a.several(a.shape(name=a.STRING, holds=a.BOOLEAN))),
    limits={"type": "object"},
)  # fmt: skip
WORD = a.shape(source=a.several(a.INTEGER), target=a.several(a.INTEGER))
TRANSLATION = a.shape(
    "detected", "words", text=a.STRING, score=a.NUMBER, log_prob=a.NUMBER,
    alternatives=a.several(a.shape("words", text=a.STRING, score=a.NUMBER, words=a.several(WORD))),
    detected=a.shape(language=a.STRING, confidence=a.NUMBER), words=a.several(WORD),
)  # fmt: skip
GENERATED = a.shape(
    text=a.STRING, finish_reason=a.STRING, log_prob=a.NUMBER, num_prompt_tokens=a.INTEGER, num_tokens=a.INTEGER
)


def own_doors(limits: Limits) -> list[Door]:
    """Returns the routes of the server's own API."""
    answers = a.shape(answers={"type": "array"}, model=a.STRING)
    candidates = a.several(a.shape(language=a.STRING, confidence=a.NUMBER))
    seems = a.shape(
        language=a.nullable(a.STRING), confidence=a.NUMBER, candidates=candidates, unsure_below=a.NUMBER
    )  # fmt: skip
    models = a.shape(object=a.STRING, data={"type": "array"}, models=a.several(MODEL))
    text = Body("detect", {"text": a.a_text("A text.", limits.max_characters, required=True)})
    return [
        Door("GET", "/v1/models", "Tells the models.", tell_models, models, needs_key=False),
        Door(
            "POST", "/v1/translate", "Translates texts, each of any number of sentences.", translate,
            a.shape(translations=a.several(TRANSLATION), model=a.STRING), translate_body(limits),
        ),
        Door(
            "POST", "/v1/generate", "Continues texts, or answers them.", generate,
            a.shape(texts=a.several(GENERATED), model=a.STRING), generate_body(limits),
        ),
        *(
            Door("POST", f"/v1/{verb}", told, _answerer(verb), answers, answer_body(verb, limits))
            for verb, (told, _) in ANSWERING.items()
        ),
        Door("POST", "/v1/detect", "Tells the language of a text; null if it is unsure.", detect, seems, text),
    ]  # fmt: skip


def translate_body(limits: Limits) -> Body:
    """Describes what `/v1/translate` takes."""
    beams = "Hypotheses that the search follows; 1 is greedy; by default the model's own number."
    fields = {
        "text": a.some_texts("What to translate.", limits.max_characters, limits.max_texts),
        "source": a.a_name('The language of the texts; "auto", or none where there are several: as each seems.'),
        "target": a.a_name("The language of the translations; not needed where the models have but one."),
        "model": MODEL_NAME,
        "beams": a.a_whole(beams, 1, limits.max_beams),
        "n_best": a.a_whole("Translations of each text: the best, and alternatives.", 1, limits.max_beams, 1),
        "words": a.a_flag("Whether to tell from which characters of the text each word comes."),
        "stream": a.a_flag("Whether to tell each sentence as soon as it is translated, as server-sent events."),
    }
    return Body("translate", fields)


def generate_body(limits: Limits) -> Body:
    """Describes what `/v1/generate` takes."""
    fields = {
        "prompt": a.some_texts("What to continue, or to answer.", limits.max_characters, limits.max_texts),
        "model": MODEL_NAME,
        "max_tokens": a.a_whole("The most tokens that are added.", 1, limits.max_new_tokens, 128),
        "beams": a.a_whole("Hypotheses that the search follows; 1 is greedy.", 1, limits.max_beams),
        **DRAWING,
        "stop": a.some_texts("Texts before which the answer ends.", a.SHORT, MOST_STOPS, required=False),
        "stream": a.a_flag("Whether to tell the text as it grows, as server-sent events."),
    }
    return Body("generate", fields)


def answer_body(verb: str, limits: Limits) -> Body:
    """Describes what the routes of the other tasks take."""
    each = "A text, an image in Base64, or a history: a list of items."
    inputs = a.a_list(each, HISTORY, HISTORY_TOLD, limits.max_texts)
    return Body(verb, {"inputs": inputs, "model": MODEL_NAME, **ANSWERING[verb][1]})


async def tell_models(http: Request, given: dict[str, JSON]) -> Response:
    """Answers `/v1/models`, for clients of OpenAI's API too."""
    service = service_of(http)
    models = [*service.host.models.values()]
    data = [
        {"id": one.name, "object": "model", "created": int(one.loaded_at), "owned_by": "keras-transformer"}
        for one in models
    ]
    told = [about(one, service.limits) for one in models]
    return JSONResponse({"object": "list", "data": data, "models": told})


def about(model: Hosted, limits: Limits) -> JSON:
    """Returns what a client may know of a model."""
    source, target = model.pairs[0] if len(model.pairs) == 1 else (None, None)
    artefacts = [{"name": name, "holds": holds} for name, holds in model.artefacts.items()]
    return {
        "name": model.name,
        "task": model.task,
        "source_language": source,
        "target_language": target,
        "pairs": model.pairs,
        "precision": model.precision,
        "sha": model.identity,
        "certificate": {"holds": model.holds, "artefacts": artefacts},
        **_of_engine(model),
        "limits": asdict(limits),
    }


def _of_engine(model: Hosted) -> JSON:
    if isinstance(model.engine, TranslationEngine):
        return {"beams": model.engine.options().num_beams, "words": model.engine.tells_words}
    return model.engine.about() if isinstance(model.engine, GenerationEngine) else {"does": [*model.engine.verbs]}


def as_list(value: JSON) -> list[str]:
    """Returns the texts of a request that has one text, or a list of them."""
    return [value] if isinstance(value, str) else value


async def translate(http: Request, given: dict[str, JSON]) -> Response:
    """Answers `/v1/translate`."""
    texts = as_list(given["text"])
    chosen = await choices(service_of(http), texts, given["model"], given["source"], given["target"])
    work = await submitted(http, texts, chosen, given["beams"], given["n_best"], given["words"])
    if given["stream"]:
        return Events(http, _translation_events(work, chosen, given["words"]), work)
    found = await answers_of(http, work)
    return JSONResponse(_translations(found, chosen, given["words"]))


async def submitted(
    http: Request, texts: Sequence[str], chosen: Sequence[Choice], beams: int | None = None, n_best: int = 1,
    words: bool = False,
) -> Divided[list[Hypothesis]]:  # fmt: skip
    """Asks the chosen models for translations.

    Raises:
        RequestError: a model does not do what is asked for.
        Refusal: too much waits, or a text is too long for its model.
    """

    def submit(choice: Choice, places: list[int]) -> Work[list[Hypothesis]]:
        options = choice.engine.options(num_beams=beams, n_best=n_best, words=words)
        return choice.engine.submit([texts[place] for place in places], options, *choice.languages)

    room = service_of(http).host.scheduler.room
    return await submitting(http, texts, lambda: Divided.submit(chosen, submit), room)


def _translations(found: Sequence[Sequence[Hypothesis]], chosen: Sequence[Choice], words: bool) -> JSON:
    names = dict.fromkeys(choice.model.name for choice in chosen)
    told = [_translation(nbest, choice, words) for nbest, choice in zip(found, chosen, strict=True)]
    return {"translations": told, "model": ", ".join(names)}


def _translation(nbest: Sequence[Hypothesis], choice: Choice, words: bool) -> JSON:
    best, *others = nbest
    told: JSON = {
        "text": best.text,
        "score": best.score,
        "log_prob": best.log_prob,
        "alternatives": [{"text": one.text, "score": one.score, **_words(one, words)} for one in others],
        **_words(best, words),
    }
    if choice.found:
        told["detected"] = {"language": choice.found[0], "confidence": round(choice.found[1], 4)}
    return told


def _words(found: Hypothesis, is_asked: bool) -> JSON:
    return {"words": [word._asdict() for word in found.words]} if is_asked else {}


async def _translation_events(
    work: Divided[list[Hypothesis]], chosen: Sequence[Choice], words: bool
) -> AsyncGenerator[bytes, None]:
    async for part in work.parts():
        sentence = {"index": part.text, "sentence": part.part, "num_sentences": part.num_parts, "line": part.line}
        yield event({**sentence, "text": part.answer[0].text}, "item")
    yield event(_translations(await work.answers(), chosen, words), "done")


async def generation(
    http: Request, model: Hosted, prompts: Sequence[str], max_tokens: int, given: dict[str, JSON]
) -> Work[list[Generated]]:
    """Asks a model for texts that begin with prompts, in its usual way, unless a value of the body says another.

    What is streamed is not searched with beams. Without a seed, each request draws anew.

    Raises:
        RequestError: the values do not go together.
        Refusal: too much waits, or a prompt is too long for the model.
    """
    engine, stops, beams = model.engine, as_list(given["stop"] or []), given.get("beams")
    assert isinstance(engine, GenerationEngine)
    if given["stream"] and (beams or 1) > 1:
        raise RequestError("a search with beams ends before its text is known: leave out stream, or beams")
    options = engine.options(num_beams=beams, n_best=given.get("n"), **{name: given[name] for name in DRAWING})
    if given["seed"] is None:
        options = replace(options, seed=secrets.randbelow(MOST_SEED))
    return await submitting(http, prompts, lambda: engine.submit(prompts, max_tokens, options, stops), engine.room)


async def generate(http: Request, given: dict[str, JSON]) -> Response:
    """Answers `/v1/generate`."""
    prompts, model = as_list(given["prompt"]), service_of(http).named(given["model"], "generate")
    work = await generation(http, model, prompts, given["max_tokens"], given)
    if given["stream"]:
        return Events(http, _generation_events(work, model), work)
    return JSONResponse(_texts(await answers_of(http, work), model))


def _texts(found: list[list[Generated]], model: Hosted) -> JSON:
    return {"texts": [best._asdict() for best, *_ in found], "model": model.name}


async def _generation_events(work: Work[list[Generated]], model: Hosted) -> AsyncGenerator[bytes, None]:
    async for part in work.parts():
        yield event({"index": part.text, "text": part.answer[0].text}, "item")
    yield event(_texts(await work.answers(), model), "done")


def _answerer(verb: str) -> Callable[[Request, dict[str, JSON]], Awaitable[Response]]:
    """Returns what answers the route of a verb."""

    async def answer(http: Request, given: dict[str, JSON]) -> Response:
        model = service_of(http).named(given["model"], verb)
        options = {name: given[name] for name in ANSWERING[verb][1] if given[name]}
        engine = model.engine
        assert isinstance(engine, AnswerEngine)
        work = await submitting(http, given["inputs"], lambda: engine.submit(given["inputs"], verb, **options))
        return JSONResponse({"answers": await answers_of(http, work), "model": model.name})

    return answer


async def detect(http: Request, given: dict[str, JSON]) -> Response:
    """Answers `/v1/detect`."""
    [found] = await asyncio.to_thread(detect_all, service_of(http), [given["text"]])
    candidates = [{"language": code, "confidence": round(share, 4)} for code, share in found.candidates]
    told = {"language": found.language, "confidence": round(found.confidence, 4), "unsure_below": SURE}
    return JSONResponse({**told, "candidates": candidates})
