"""Holds the models that a server answers with: loads them, checks them on this machine, and replaces them."""

from __future__ import annotations

import hashlib
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from keras_transformer.checking.probes import checking_anew
from keras_transformer.commands.runs import certified
from keras_transformer.core.errors import RequestError
from keras_transformer.core.machine import num_cores
from keras_transformer.runs.export_folder import ExportFolder, Graphs, precision_of_graph
from keras_transformer.runs.run_folder import config_of
from keras_transformer.serving.answering import AnswerEngine
from keras_transformer.serving.batching import Observer, Refusal, Scheduler
from keras_transformer.serving.generating import GenerationEngine
from keras_transformer.serving.translating import TranslationEngine

PAIR = re.compile(r"([A-Za-z]{2,3}(?:_[A-Za-z]+)?)-([A-Za-z]{2,3}(?:_[A-Za-z]+)?)")
AnyEngine = TranslationEngine | GenerationEngine | AnswerEngine
# Each answers for the models of its tasks.
ENGINES: tuple[type[AnyEngine], ...] = (TranslationEngine, GenerationEngine, AnswerEngine)
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True)
class Limits:
    """What a server takes at most.

    Args:
        max_texts: texts in a request.
        max_characters: characters of a text.
        max_body_bytes: bytes of a request's body.
        max_beams: beams of a search, and hypotheses that are returned.
        max_new_tokens: tokens that are added to a prompt.
        max_waiting_tokens: tokens that wait, see `Scheduler`.
        batch_tokens: tokens of a batch, see `Scheduler`.
        seconds: from a request to its answer.
    """

    max_texts: int = 1_024
    max_characters: int = 100_000
    max_body_bytes: int = 2**21
    max_beams: int = 16
    max_new_tokens: int = 2_048
    max_waiting_tokens: int = 200_000
    batch_tokens: int = 8_192
    seconds: float = 60.0


@dataclass
class Hosted:
    """A model that is served.

    Args:
        name: its name in requests.
        task: its task, a key of `TASKS`.
        pairs: the languages of source and target that it translates between; none if they are not known.
        precision: of its graphs.
        identity: the SHA-256 of its main graph, shortened.
        artefacts: what the certificate says of each artefact; empty without a certificate.
        engine: what answers.
        loaded_at: by `time.time`.
    """

    name: str
    task: str
    pairs: list[tuple[str, str]]
    precision: str
    identity: str
    artefacts: Mapping[str, bool]
    engine: AnyEngine
    loaded_at: float

    @property
    def holds(self) -> bool:
        """Whether there is a certificate by which all artefacts hold."""
        return bool(self.artefacts) and all(self.artefacts.values())


class Host:
    """Loads the models of a server. Threads may share it.

    Args:
        named: the folders of exports, or of runs that keep graphs, by the names of the models. A name such as "en-de"
            tells the languages too, where the model does not.
        limits: what the server takes.
        num_threads: how many threads compute; by default one for each core.
        observer: hears of each batch.

    Raises:
        RequestError: a name cannot stand in an address.
    """

    def __init__(
        self,
        named: Mapping[str, str],
        limits: Limits | None = None,
        num_threads: int | None = None,
        observer: Observer | None = None,
    ):
        for name in named:
            if not NAME.fullmatch(name):
                raise RequestError(
                    f"expected names of letters, digits, dots, - and _ for models; received {name!r:.80}: give "
                    "NAME=FOLDER"
                )
        self.named, self.limits = dict(named), limits or Limits()
        self.models: dict[str, Hosted] = {}
        self.is_ready = False
        self._loading = threading.Lock()
        self.scheduler = Scheduler(
            num_threads or num_cores(), self.limits.batch_tokens, self.limits.max_waiting_tokens, observer=observer
        )

    def load(self) -> None:
        """Loads the models, lets each answer its probes on this machine, and warms it.

        Models that are loaded already answer until the new ones can, and finish what they began.

        Raises:
            RequestError: a folder holds no model with graphs, or a file is damaged.
            JobError: a model does not answer its probes on this machine; what was loaded before goes on.
            Refusal: they are being loaded already.
        """
        if not self._loading.acquire(blocking=False):
            raise Refusal(503, "unavailable", "the models are being loaded already", 1.0)
        opened, left = dict[str, Hosted](), self.models
        try:
            with checking_anew():
                for name, folder in self.named.items():
                    opened[name] = self._opened(name, folder)
            self.models, self.is_ready = opened, True
        except BaseException:
            left = opened
            raise
        finally:
            for engine in growing(left):
                engine.retire()
            self._loading.release()

    def _opened(self, name: str, folder: str) -> Hosted:
        task = config_of(folder).task
        kind = next((kind for kind in ENGINES if task in kind.tasks), None)
        if kind is None:
            raise RequestError(f"{folder} is a model of --task {task}, which cannot be served yet")
        engine, found = kind.open(name, folder, self.scheduler), PAIR.fullmatch(name)
        try:
            return Hosted(
                name,
                task,
                [(found[1], found[2])] if found else [*engine.pairs],
                precision_of_graph(engine.graphs.main),
                identity_of(engine.graphs),
                certified(engine.graphs) if ExportFolder(folder).is_export() else {},
                engine,
                time.time(),
            )
        except BaseException:
            if isinstance(engine, GenerationEngine):
                engine.retire()
            raise

    @property
    def waiting_tokens(self) -> int:
        """How many tokens wait, for all models."""
        return self.scheduler.room.waiting + sum(one.room.waiting for one in growing(self.models))

    def close(self) -> None:
        """Ends the threads."""
        self.is_ready = False
        for engine in growing(self.models):
            engine.close()
        self.scheduler.close()


def growing(models: Mapping[str, Hosted]) -> list[GenerationEngine]:
    """Returns the engines that have threads of their own."""
    return [one.engine for one in models.values() if isinstance(one.engine, GenerationEngine)]


def identity_of(graphs: Graphs) -> str:
    """Returns a short hash of the content of the main graph, with the weights beside it."""
    digest = hashlib.sha256()
    for path in (graphs.main, graphs.main.with_name(f"{graphs.main.name}.data")):
        if path.is_file():
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:16]


def named_folders(arguments: list[str]) -> dict[str, str]:
    """Returns the folders by the names of the models, from arguments `NAME=FOLDER` or `FOLDER`.

    Raises:
        RequestError: two models have one name.
    """
    named: dict[str, str] = {}
    for argument in arguments:
        name, is_named, folder = argument.partition("=")
        if not is_named:
            path = Path(argument)
            name, folder = (path.parent.name if path.name == "onnx" else path.name), argument
        if name in named:
            raise RequestError(f"two models have the name {name}: name them, as in one=FOLDER other=FOLDER")
        named[name] = folder
    return named
