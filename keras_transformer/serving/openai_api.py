"""Answers the API of OpenAI for language models, and the one that vLLM proposes for translators."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from keras_transformer.core.errors import RequestError
from keras_transformer.core.schema import list_of, object_of, one_of
from keras_transformer.serving import described as a
from keras_transformer.serving.choosing import choices
from keras_transformer.serving.described import JSON, OPENAI, Body, Door, Field
from keras_transformer.serving.generating import Generated, GenerationEngine
from keras_transformer.serving.hosting import Limits
from keras_transformer.serving.own_api import DRAWING, MOST_STOPS, as_list, generation, submitted
from keras_transformer.serving.service import service_of
from keras_transformer.serving.wire import Events, Work, answers_of, event

if TYPE_CHECKING:
    from keras_transformer.decoding.decoder import Hypothesis

MOST_MESSAGES = 256
ROLES = ("system", "developer", "user", "assistant")
DONE = event("[DONE]")
# What changes no answer here, and what would: the one value of it that is taken, which asks for nothing.
NOT_READ = (
    "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
    "parallel_tool_calls",
)  # fmt: skip
ONLY: dict[str, tuple[JSON, ...]] = {
    "frequency_penalty": (0,), "presence_penalty": (0,), "logit_bias": ({},), "logprobs": (False,), "best_of": (1,),
    "echo": (False,), "suffix": ("",), "top_logprobs": (0,), "tools": ([],), "tool_choice": ("none", "auto"),
    "response_format": ({"type": "text"},), "modalities": (["text"],),
}  # fmt: skip
# What a chat has: a text, or parts that are texts.
PART = object_of({"type": one_of(["text"]), "text": str})
CONTENT = a.text_or(list_of(PART, 1), "a list of parts of the type text")
MESSAGE = object_of({"role": one_of(ROLES), "content": CONTENT}, {"name": str})
PART_TOLD = {**a.shape(type={"const": "text"}, text=a.STRING), "additionalProperties": False}
CONTENT_TOLD = {"anyOf": [a.STRING, a.several(PART_TOLD, 1)]}
MESSAGE_TOLD = {
    **a.shape("name", role={"enum": [*ROLES]}, content=CONTENT_TOLD, name=a.STRING), "additionalProperties": False
}  # fmt: skip


def openai_doors(limits: Limits) -> list[Door]:
    """Returns the routes of OpenAI's API, and of vLLM's translations."""
    return [
        Door(
            "POST", "/v1/completions", "Continues texts, as OpenAI's API does.", complete, a.OBJECT,
            completion_body(limits), OPENAI,
        ),
        Door(
            "POST", "/v1/chat/completions", "Answers a chat, as OpenAI's API does.", chat, a.OBJECT,
            chat_body(limits), OPENAI,
        ),
        Door(
            "POST", "/v1/translations", "Translates texts, as vLLM proposes.", translate, a.OBJECT,
            translations_body(limits), OPENAI,
        ),
    ]  # fmt: skip


def common_fields(limits: Limits) -> dict[str, Field]:
    """Describes what completions and chats take alike. What is not understood may have the value that does nothing."""
    names = ("include_usage", "include_obfuscation")
    options = Field(
        object_of({}, dict.fromkeys(names, bool)),
        {**a.OBJECT, "properties": dict.fromkeys(names, a.BOOLEAN), "additionalProperties": False},
    )
    return {
        "model": a.a_name("The name of a model.", required=True),
        "n": a.a_whole("Answers to each prompt.", 1, limits.max_beams, 1),
        **DRAWING,
        "stop": a.some_texts("Texts before which the answer ends.", a.SHORT, MOST_STOPS, required=False),
        "stream": a.a_flag("Whether to tell the text as it grows, as server-sent events."),
        "stream_options": options,
        **{name: a.a_value("Not read.") for name in NOT_READ},
        **{name: a.a_value("Not understood.", *values) for name, values in ONLY.items()},
    }


def completion_body(limits: Limits) -> Body:
    """Describes what `/v1/completions` takes."""
    fields = {
        "prompt": a.some_texts("What to continue.", limits.max_characters, limits.max_texts),
        "max_tokens": a.a_whole("The most tokens that are added.", 1, limits.max_new_tokens, 16),
        **common_fields(limits),
    }
    return Body("completion", fields)


def chat_body(limits: Limits) -> Body:
    """Describes what `/v1/chat/completions` takes."""
    most = a.a_whole("The most tokens that are added.", 1, limits.max_new_tokens)
    fields = {
        "messages": a.a_list("The messages of the chat, the oldest first.", MESSAGE, MESSAGE_TOLD, MOST_MESSAGES),
        "max_tokens": most,
        "max_completion_tokens": most,
        **common_fields(limits),
    }
    return Body("chat_completion", fields)


def translations_body(limits: Limits) -> Body:
    """Describes what `/v1/translations` takes."""
    fields = {
        "text": a.some_texts("What to translate.", limits.max_characters, limits.max_texts),
        "model": a.a_name("The name of a model; by default the one that fits the languages."),
        "source_language": a.a_name("The language of the texts; by default the only one, or as each seems."),
        "target_language": a.a_name("The language of the translations.", required=True),
        "stream": a.a_flag("Whether to tell each sentence as soon as it is translated, as server-sent events."),
    }
    return Body("translations", fields)


class Form(NamedTuple):
    """How an answer is written: of completions, or of a chat.

    Args:
        prefix: of its id.
        kind: of the whole answer.
        chunk_kind: of what is streamed.
        is_chat: whether it is of a chat.
    """

    prefix: str
    kind: str
    chunk_kind: str
    is_chat: bool = False

    def envelope(self, http: Request, model: str, is_chunk: bool = False) -> dict[str, JSON]:
        """Returns what stands around the choices."""
        kind = self.chunk_kind if is_chunk else self.kind
        id = f"{self.prefix}-{http.state.request_id}"
        return {"id": id, "object": kind, "created": int(time.time()), "model": model}

    def choice(self, index: int, one: Generated, name: str = "message", is_first: bool = True) -> JSON:
        """Returns a whole text; or a part of it, a "delta"."""
        role = {"role": "assistant"} if is_first else {}
        text: JSON = {name: {**role, "content": one.text}} if self.is_chat else {"text": one.text}
        return {"index": index, **text, "logprobs": None, "finish_reason": one.finish_reason or None}


COMPLETIONS = Form("cmpl", "text_completion", "text_completion")
CHATS = Form("chatcmpl", "chat.completion", "chat.completion.chunk", is_chat=True)


async def complete(http: Request, given: dict[str, JSON]) -> Response:
    """Answers `/v1/completions`."""
    return await _generated(http, given, as_list(given["prompt"]), given["max_tokens"], COMPLETIONS)


async def chat(http: Request, given: dict[str, JSON]) -> Response:
    """Answers `/v1/chat/completions`."""
    service = service_of(http)
    messages = [{"role": one["role"], "content": _text_of(one["content"])} for one in given["messages"]]
    if sum(len(one["content"]) for one in messages) > service.limits.max_characters:
        raise RequestError(f"expected a chat of at most {service.limits.max_characters:,} characters: shorten it")
    engine = service.named(given["model"], "generate").engine
    assert isinstance(engine, GenerationEngine)
    prompt = await run_in_threadpool(engine.prompt_of, messages)  # a template takes its time
    most = given["max_completion_tokens"] or given["max_tokens"] or service.limits.max_new_tokens
    return await _generated(http, given, [prompt], most, CHATS)


def _text_of(content: JSON) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


async def _generated(http: Request, given: dict[str, JSON], prompts: list[str], most: int, form: Form) -> Response:
    model = service_of(http).named(given["model"], "generate")
    work = await generation(http, model, prompts, most, given)
    if given["stream"]:
        has_usage = (given["stream_options"] or {}).get("include_usage", False)
        return Events(http, _chunks(http, work, form, model.name, given["n"], has_usage), work, OPENAI)
    found = await answers_of(http, work)
    texts = [one for of_prompt in found for one in of_prompt]
    told = [form.choice(index, one) for index, one in enumerate(texts)]
    return JSONResponse({**form.envelope(http, model.name), "choices": told, "usage": usage(texts, given["n"])})


def usage(texts: Sequence[Generated], num_each: int = 1) -> JSON:
    """Returns how many tokens were read and written; a prompt counts once."""
    read = sum(one.num_prompt_tokens for one in texts[::num_each])
    written = sum(one.num_tokens for one in texts)
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}


async def _chunks(
    http: Request, work: Work[list[Generated]], form: Form, model: str, num_each: int, has_usage: bool
) -> AsyncGenerator[bytes, None]:
    envelope = form.envelope(http, model, is_chunk=True)
    last: dict[int, Generated] = {}
    async for part in work.parts():
        index, [one] = part.text * num_each + part.part, part.answer
        choice = form.choice(index, one, "delta", index not in last)
        last[index] = one
        yield event({**envelope, "choices": [choice], **({"usage": None} if has_usage else {})})
    if has_usage:
        yield event({**envelope, "choices": [], "usage": usage([last[index] for index in sorted(last)], num_each)})
    yield DONE


async def translate(http: Request, given: dict[str, JSON]) -> Response:
    """Answers `/v1/translations`."""
    service, texts = service_of(http), as_list(given["text"])
    if given["stream"] and len(texts) > 1:
        raise RequestError("expected one text to stream; received several: leave out stream")
    chosen = await choices(service, texts, given["model"], given["source_language"], given["target_language"])
    work = await submitted(http, texts, chosen)
    form = Form("trans", "translation", "translation.chunk")
    envelope = form.envelope(http, chosen[0].model.name, given["stream"])
    if given["stream"]:
        return Events(http, _sentences(work, envelope), work, OPENAI)
    found = [nbest[0].text for nbest in await answers_of(http, work)]
    return JSONResponse({**envelope, "text": found[0] if isinstance(given["text"], str) else found})


async def _sentences(work: Work[list[Hypothesis]], envelope: dict[str, JSON]) -> AsyncGenerator[bytes, None]:
    async for part in work.parts():
        yield event({**envelope, "sentence": part.part, "num_sentences": part.num_parts, "text": part.answer[0].text})
    yield DONE
