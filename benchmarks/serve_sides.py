"""Serves translations in the ways that `benchmarks.serve` compares, on a free port, which it prints.

Arguments: the way, the folder of an export (of a model for CTranslate2), the vocabulary, beams, threads, compute type.
All sides are uvicorn and Starlette, and answer POST /v1/translate with {"text": one or a list}.
"""

from __future__ import annotations

import asyncio
import math
import queue
import sys
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from keras_transformer.serving.batching import LEAST_ROWS
from keras_transformer.serving.serve import listening

Translate = Callable[[Sequence[str]], Awaitable[list[str]]]


def ours(folder: str, batch_tokens: int, num_threads: int) -> Starlette:
    """Returns our server; with a budget of one token it has batches of one."""
    from keras_transformer import serving
    from keras_transformer.serving.hosting import Limits

    limits = Limits(batch_tokens=batch_tokens, max_waiting_tokens=2**24)
    return serving.app({"model": folder}, limits=limits, num_threads=num_threads)


def loop(folder: str, num_threads: int) -> Starlette:
    """Returns a server that translates the texts of a list one after the other, as LibreTranslate does."""
    from keras_transformer import load

    translator = load(folder, num_threads=num_threads, engine="onnx")

    def one_by_one(texts: Sequence[str]) -> list[str]:
        return [translator.translate(text) for text in texts]

    async def translate(texts: Sequence[str]) -> list[str]:
        return await run_in_threadpool(one_by_one, texts)

    return answering(translate)


def ctranslate2_side(folder: str, vocabulary: str, num_beams: int, num_threads: int, compute_type: str) -> Starlette:
    """Returns a server on CTranslate2 that takes what waits when a worker is free, as ours does."""
    import ctranslate2
    import sentencepiece

    pieces = sentencepiece.SentencePieceProcessor(model_file=vocabulary)
    translator = ctranslate2.Translator(folder, compute_type=compute_type, inter_threads=num_threads, intra_threads=1)
    waiting: queue.SimpleQueue[tuple[str, Future[str]]] = queue.SimpleQueue()

    def work() -> None:
        while True:
            batch = [waiting.get()]
            most = max(LEAST_ROWS, math.ceil((1 + waiting.qsize()) / num_threads))
            with suppress(queue.Empty):
                while len(batch) < most:
                    batch.append(waiting.get_nowait())
            sources = pieces.encode([text for text, _ in batch], out_type=str)
            found = translator.translate_batch(sources, beam_size=num_beams, length_penalty=0)
            texts = pieces.decode([result.hypotheses[0] for result in found])
            for (_, future), text in zip(batch, texts, strict=True):
                future.set_result(text)

    for _ in range(num_threads):
        threading.Thread(target=work, daemon=True).start()

    async def translate(texts: Sequence[str]) -> list[str]:
        futures = [Future[str]() for _ in texts]
        for pair in zip(texts, futures, strict=True):
            waiting.put(pair)
        return await asyncio.gather(*map(asyncio.wrap_future, futures))

    return answering(translate)


def answering(translate: Translate) -> Starlette:
    """Returns a server that answers as ours does, as far as the benchmark reads answers."""

    async def answer(request: Request) -> JSONResponse:
        text = (await request.json())["text"]
        texts = [text] if isinstance(text, str) else text
        return JSONResponse({"translations": [{"text": one} for one in await translate(texts)]})

    return Starlette(routes=[Route("/v1/translate", answer, methods=["POST"])])


def main() -> None:
    """Serves until it is ended."""
    way, folder, vocabulary, *numbers, compute_type = sys.argv[1:]
    num_beams, num_threads = map(int, numbers)
    sides: dict[str, Callable[[], Starlette]] = {
        "ours": lambda: ours(folder, 8_192, num_threads),
        "batches of one": lambda: ours(folder, 1, num_threads),
        "a loop": lambda: loop(folder, num_threads),
        "CTranslate2": lambda: ctranslate2_side(folder, vocabulary, num_beams, num_threads, compute_type),
    }
    with listening("127.0.0.1", 0) as listener:
        config = uvicorn.Config(sides[way](), log_level="error", access_log=False, timeout_keep_alive=600)
        print(listener.getsockname()[1], flush=True)
        uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
