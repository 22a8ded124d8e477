"""Probes: a few sources with what the model answers, by which graphs check themselves where they run.

Runtimes differ: what a processor computes rightly, a GPU may not. So a decoder of graphs runs the probes before it
first answers on a runtime, unless a certificate or an earlier check says that the graphs hold there.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from keras_transformer.core.errors import JobError, RequestError
from keras_transformer.core.files import user_cache, write_text
from keras_transformer.core.schema import Allowed, Mismatch, having, list_of, object_of, of_type, read_json, whole
from keras_transformer.runs.export_folder import BOUNDS, NEAR_TIE
from keras_transformer.spec.options import Config
from keras_transformer.spec.search_options import MAX_OWN_BEAMS, Decoding, SearchOptions, longest, penalty
from keras_transformer.text.lines import is_blank
from keras_transformer.text.sentences import Ids, padded
from keras_transformer.text.tokenizer import END, PAD, START, Tokenizer

NUM_PROBES = 4
NUM_CANDIDATES = 32  # sources that are translated, of which the probes are chosen
MOST_PIECES = 16  # the longest source, in pieces
MOST_COMMON = 2000  # pieces, of which sources are made where there is no text
MAX_BYTES = 2**26  # the largest file with probes
LEAST_ALIGNED = {"float32": 0.9, "float16": 0.5, "int8": 0.5}  # the share of tokens that look where the model looks
INT32 = whole(-(2**31), 2**31 - 1)
PROBE_LENGTHS = (2, 5, 9, 14)  # in random ids, without start and end
STRIDE = 37  # between neighbours in images that are made up
IMAGES = having(images=list_of(whole(1, 2**12), 4, 4))
PROBES = object_of({}, {"probes": list_of(object, 0, NUM_PROBES), "entries": list_of(object)}, others=object)
MEASURED = having(versions=object_of({}, others=str), provider=str, device_name=str)
ENTRY = having(name=str, holds=bool, contents=having(bytes=whole(0)), judgement=having(measured=MEASURED))


Read = TypeVar("Read")  # what a file has of a probe


class Answer(NamedTuple):
    """A translation: its ids with the end, log P in nats, and the source position at which each id but the end looks;
    no positions where nobody tells them."""

    ids: Ids
    log_prob: float
    alignment: Sequence[int] = ()


class Probe(NamedTuple):
    """A source, its end included, and what the model finds in float32, the best first."""

    source_ids: Ids
    hypotheses: list[Answer]

    @classmethod
    def read(cls, probe: object, vocabulary_sizes: tuple[int | None, int], max_source_length: int) -> Probe:
        """Reads a probe from a file, trusted or not.

        Args:
            probe: what the file has.
            vocabulary_sizes: the sizes for source and target; the source's is None if both share one vocabulary.
            max_source_length: the most pieces that the model reads.

        Raises:
            ValueError: it is damaged, or not for such a model.
        """
        source_size, target_size = vocabulary_sizes
        target = list_of(whole(PAD + 1, target_size - 1), 1, longest(max_source_length))
        places = list_of(whole(0, max_source_length), 0, longest(max_source_length))
        found = having(
            source_ids=list_of(whole(PAD + 1, (source_size or target_size) - 1), 1, max_source_length + 1),
            hypotheses=list_of(
                object_of({"ids": target, "log_prob": float}, {"alignment": places}, others=object), 1, MAX_OWN_BEAMS
            ),
        ).checked(probe)
        if found["source_ids"][-1] != END:
            raise Mismatch.at("source_ids", f"ids with the end id {END} behind them", found["source_ids"])
        answers = [Answer(one["ids"], float(one["log_prob"]), one.get("alignment", [])) for one in found["hypotheses"]]
        return cls(found["source_ids"], answers)


class ComputedProbe(NamedTuple):
    """What a model that does not search takes, ids or images, and what it gives in float32: arrays (B, ...)."""

    inputs: list[np.ndarray]
    outputs: list[np.ndarray]

    @classmethod
    def read(cls, probe: object) -> ComputedProbe:
        """Reads a probe from a file; it raises as `Probe.read` does."""
        outputs = having(outputs=list_of(object, 1, 3)).checked(probe)["outputs"]
        found = [_array(each, "outputs", float) for each in outputs]
        if isinstance(probe, dict) and "images" in probe:
            return cls([images_of_shape(IMAGES.checked(probe)["images"])], found)
        given = having(inputs=list_of(object, 1, 2)).checked(probe)["inputs"]
        inputs = [_array(each, "inputs", INT32).astype("int32") for each in given]
        if inputs[0].ndim != 2 or {array.shape for array in inputs} != {inputs[0].shape}:
            raise Mismatch.at("inputs", "rows of ids of one length", given)
        return cls(inputs, found)

    def as_json(self) -> Config:
        """Returns what a file keeps of it; of images, which are always the same, the shape."""
        outputs = [array.tolist() for array in self.outputs]
        if self.inputs[0].dtype == np.uint8:
            return {"images": self.inputs[0].shape, "outputs": outputs}
        return {"inputs": [array.tolist() for array in self.inputs], "outputs": outputs}


def images_of_shape(shape: Sequence[int]) -> np.ndarray:
    """Makes images (B, S, S, channels) uint8, always the same."""
    return (np.arange(math.prod(shape)) * STRIDE % 256).astype("uint8").reshape(shape)


def rows_of_ids(first: int, vocabulary_size: int, context_length: int) -> np.ndarray:
    """Makes random rows of ids (B, S) int32, padded with 0, always the same: from `first` on, between start and end."""
    generator = np.random.default_rng(1)
    return padded(
        [
            [START, *generator.integers(first, vocabulary_size, length).tolist(), END]
            for length in PROBE_LENGTHS
            if length + 2 <= context_length
        ]
    )


def _array(value: object, place: str, each: Allowed) -> np.ndarray:
    """Returns the array of the numbers in lists within lists.

    Raises:
        ValueError: a list has another length than its neighbours, or none, or something in it is no such number.
    """
    values = np.array(value, object)  # where lengths differ, lists are left in it
    for one in values.flat:
        of_type(each).checked(one, place)
    numbers = np.array(values.tolist())
    if not numbers.ndim or not numbers.size or numbers.dtype.kind not in "if":
        raise Mismatch.at(place, "lists of numbers", value)
    return numbers


class Runtime(NamedTuple):
    """What runs graphs: ONNX Runtime's name of the provider, the version of ONNX Runtime, the device's name."""

    provider: str
    version: str
    device_name: str


class Differs(Exception):
    """Graphs do not answer as the model does. The message says where."""

    @classmethod
    def at(cls, number: int, expected: Answer, received: Answer) -> Differs:
        """Makes the error for a probe, which is counted from 1."""
        told = (f"{ids!s:.60} with log P {log_prob:.4f}" for ids, log_prob, _ in (expected, received))
        return cls(f"probe {number}: expected {next(told)}; received {next(told)}")


def chosen_probes(translator: Any, sentences: Iterable[str], options: Decoding | SearchOptions) -> list[Probe]:
    """Chooses the probes of a translator: its shortest sentences whose best translation leads by most.

    A low precision, too, gives such a translation. Of greedy search these are the likeliest ones.

    Args:
        translator: a `Translator` with its Keras model.
        sentences: some of its source language; where few of them are short, texts of common pieces join them.
        options: `num_beams`, `length_penalty`, `max_length` and guards of the search, as `SearchOptions` has them.

    Raises:
        JobError: the model's weights hold NaN or infinity.
    """
    tokenizer, tags = translator.source_tokenizer, translator.direction.source
    most = min(MOST_PIECES, translator.max_source_length)
    sources = shortest_sources(tokenizer, tags, most, sentences)
    if len(sources) < NUM_CANDIDATES:
        made = shortest_sources(tokenizer, tags, most, made_sentences(tokenizer))
        sources = [*dict.fromkeys([*sources, *made])]
    num_beams, length_penalty, max_length = options.num_beams, options.length_penalty, options.max_length
    search = SearchOptions(
        num_beams, length_penalty, max_length, n_best=num_beams, alignments=True, **options.active_guards()
    )
    found = zip(sources, translator.search_ids(sources, search), strict=True)
    return by_largest_margin(
        (
            best.score - (others[0].score if others else 0.0),
            Probe(
                [*ids, END],
                [Answer(list(one.ids), one.log_prob, [at for at, _ in one.alignment]) for one in (best, *others)],
            ),
        )
        for ids, [best, *others] in found
    )


def by_largest_margin(found: Iterable[tuple[float, Probe]]) -> list[Probe]:
    """Returns the probes with the widest gaps between their best and their second best score."""
    return [probe for _, probe in sorted(found, key=lambda one: one[0], reverse=True)[:NUM_PROBES]]


def shortest_sources(tokenizer: Tokenizer, tags: Ids, most: int, sentences: Iterable[str]) -> list[tuple[int, ...]]:
    """Returns the pieces of the shortest sentences behind tags, each once; none of more than `most` pieces."""
    texts = [text for text in sentences if not is_blank(text)]
    sources = dict.fromkeys((*tags, *ids) for ids in tokenizer.encode(texts) if ids)
    return sorted((ids for ids in sources if 0 < len(ids) <= most), key=len)[:NUM_CANDIDATES]


def made_sentences(tokenizer: Tokenizer) -> list[str]:
    """Makes texts of one to six common pieces, always the same."""
    generator = np.random.default_rng(1)
    most = min(MOST_COMMON, tokenizer.vocabulary_size)
    rows = [generator.integers(END + 1, most, 1 + number % 6).tolist() for number in range(2 * NUM_CANDIDATES)]
    return tokenizer.decode(rows)


def as_json(probes: Sequence[Probe]) -> list[Config]:
    """Returns what JSON files keep under "probes"."""
    return [
        {"source_ids": one.source_ids, "hypotheses": [hypothesis._asdict() for hypothesis in one.hypotheses]}
        for one in probes
    ]


class ProbesFile(NamedTuple, Generic[Read]):
    """What a certificate, or a file beside a graph, says: its JSON, and the probes in it; no probes without a file."""

    content: Config
    probes: list[Read]

    @classmethod
    def read(cls, path: Path, read: Callable[[object], Read]) -> ProbesFile[Read]:
        """Reads a file, trusted or not.

        Args:
            path: the file; it need not be there.
            read: makes a probe of what the file has of one: `Probe.read` or `ComputedProbe.read`.

        Raises:
            RequestError: the file is damaged, or its probes are not for such a model.
        """
        try:
            content = read_json(path, PROBES, MAX_BYTES, has_constants=True)
            return cls(content, list(map(read, content.get("probes", []))))
        except (FileNotFoundError, NotADirectoryError):
            return cls({}, [])
        except ValueError as error:
            raise RequestError(
                f"{path} is damaged, or its probes are not for these graphs; export again, or delete the file, and "
                f"nothing is checked: {error!s:.200}"
            ) from error

    def certifies(self, name: str, num_bytes: int, runtime: Runtime) -> bool:
        """Tells whether it is a certificate by which the files of this name and size hold on this very runtime."""
        told = map(_told, self.content.get("entries", []))
        return bool(runtime.device_name) and (name, num_bytes, True, runtime) in told


def _told(entry: Any) -> tuple[str, int, bool, Runtime] | None:
    """Returns what an entry of a certificate says: files, size, verdict, runtime; None if the check did not run."""
    try:
        measured = ENTRY.checked(entry)["judgement"]["measured"]
    except Mismatch:
        return None
    version = [text for name, text in measured["versions"].items() if name in ("onnxruntime", "onnxruntime-gpu")]
    runtime = Runtime(measured["provider"], "".join(version[:1]), measured["device_name"])
    return entry["name"], entry["contents"]["bytes"], entry["holds"], runtime


def check(
    probes: Sequence[Probe], answers: Sequence[Sequence[Answer]], precision: str, length_penalty: float = 0.0
) -> None:
    """Raises Differs unless graphs answer the probes as the model does.

    Every log P is finite, and that of a hypothesis of the model is the model's within the bounds. In float32 the best
    answer is the model's best, or one as good. In low precision at least half of them are hypotheses of the model.

    Args:
        probes: the probes.
        answers: what the graphs give for each, the best first.
        precision: the precision of the graphs.
        length_penalty: α of the search.
    """
    bounds, off, num_tokens, num_others = BOUNDS[precision], 0.0, 0, 0
    for number, (probe, given) in enumerate(zip(probes, answers, strict=True), start=1):
        model = {tuple(one.ids): one.log_prob for one in probe.hypotheses}
        best = probe.hypotheses[0]
        for ids, log_prob, _ in given:
            expected = model.get(tuple(ids), log_prob)
            # NaN is within no bound, and infinity less infinity is NaN.
            if not (ids and abs(log_prob - expected) <= bounds.log_prob * len(ids)):
                raise Differs.at(number, Answer(ids, expected) if tuple(ids) in model else best, Answer(ids, log_prob))
            off, num_tokens = off + log_prob - expected, num_tokens + len(ids)
        first = given[0]
        worse = score(best, length_penalty) - score(first, length_penalty)
        if precision == "float32" and first.ids != best.ids and abs(worse) > NEAR_TIE:
            raise Differs.at(number, best, first)
        num_others += tuple(first.ids) not in model
        if num_others > len(probes) / 2:
            raise Differs.at(number, best, first)
    _check_alignments(probes, answers, precision)
    if abs(off) > bounds.mean_log_prob * num_tokens:
        raise Differs(f"expected the model's log P; received {off / num_tokens:+.4f} nats a token more, on average")


def _check_alignments(probes: Sequence[Probe], answers: Sequence[Sequence[Answer]], precision: str) -> None:
    """Raises Differs unless the best answers that are the model's look where it looks, as far as both tell it."""
    pairs = [(probe.hypotheses[0], given[0]) for probe, given in zip(probes, answers, strict=True)]
    told = [(one.alignment, other.alignment) for one, other in pairs if one.ids == other.ids and one.alignment]
    same = [at == place for one, other in told if other for at, place in zip(one, other, strict=True)]
    if sum(same) < LEAST_ALIGNED[precision] * len(same):
        raise Differs(
            f"expected the model's alignments; received others for {len(same) - sum(same)} of {len(same)} tokens"
        )


def check_computed(probe: ComputedProbe, outputs: Sequence[np.ndarray], precision: str) -> None:
    """Raises Differs unless a graph gives what the model gives.

    Log P is within its bound for each token, a vector or the probabilities of a place within theirs: in low precision
    on average, because ids that are made up leave a model undecided. At half of the places at least, the likeliest
    piece is the model's.

    Args:
        probe: what the model gives.
        outputs: what the graph gives.
        precision: the precision of the graph.
    """
    bounds, width = BOUNDS[precision], probe.inputs[0].shape[1]
    shapes, others = ([array.shape for array in arrays] for arrays in (probe.outputs, outputs))
    if shapes != others:
        raise Differs(f"expected arrays of the shapes {shapes}; received {others}")
    for expected, received in zip(probe.outputs, outputs, strict=True):
        off = received - expected
        if expected.dtype.kind == "i":
            holds = np.mean(off[..., 0] == 0) >= 0.5
        elif expected.ndim == 1:  # NaN is within no bound
            holds = np.all(np.abs(off) <= bounds.log_prob * width)
        else:
            far, most = np.linalg.norm(off, axis=-1), bounds.vector * np.linalg.norm(expected, axis=-1)
            holds = np.all(far <= most) if precision == "float32" else np.mean(far) <= np.mean(most)
        if not holds:
            raise Differs(f"expected {expected.ravel()!s:.60}; received {received.ravel()!s:.60}")


def score(answer: Answer, length_penalty: float) -> float:
    """Returns the length-normalised score of an answer, by which a search ranks."""
    return answer.log_prob / penalty(len(answer.ids), length_penalty)


_ANEW: ContextVar[bool] = ContextVar("anew", default=False)


@contextmanager
def checking_anew() -> Iterator[None]:
    """Lets graphs that are opened in this block answer their probes, whatever a certificate or earlier check says."""
    token = _ANEW.set(True)
    try:
        yield
    finally:
        _ANEW.reset(token)


def check_once(file: ProbesFile[Read], paths: Sequence[Path], runtime: Runtime, compare: Callable[[], None]) -> None:
    """Checks graphs, unless a certificate or an earlier check says that they hold on this runtime.

    Args:
        file: the probes, and the certificate if it is one.
        paths, runtime: the paths of the graphs, and what runs them.
        compare: raises Differs or JobError if they do not hold.

    Raises:
        JobError: they do not hold; the message names the provider and the graphs.
    """
    if not file.probes:
        return
    name = "onnx/" + " + ".join(path.name for path in paths)
    weights = [path.with_name(f"{path.name}.data") for path in paths]  # the weights of large graphs
    stats = {str(each.resolve()): each.stat() for each in (*paths, *weights) if each.is_file()}
    if not _ANEW.get() and file.certifies(name, sum(each.st_size for each in stats.values()), runtime):
        return
    identities = [[path, each.st_size, each.st_mtime_ns] for path, each in stats.items()]
    seen = json.dumps([identities, file.content["probes"], runtime])
    try:
        verdict = user_cache() / "probes" / f"{hashlib.sha256(seen.encode()).hexdigest()[:32]}.json"
        if verdict.is_file() and not _ANEW.get():
            return
    except OSError:  # without a home, or without permission, nothing is kept
        verdict = None
    try:
        compare()
    except (Differs, JobError) as error:
        mend = "go on with --provider cpu (in Python: provider='cpu')"
        if runtime.provider == "CPUExecutionProvider":
            mend = "export again, or answer with the run and --engine keras"
        raise JobError(
            f"{runtime.provider} of ONNX Runtime {runtime.version} does not answer as the model does with "
            f"{' and '.join(map(str, paths))}: {error}: {mend}"
        ) from None
    with suppress(OSError):
        if verdict:
            verdict.parent.mkdir(parents=True, exist_ok=True)
            write_text(verdict, seen)


def device_name(provider: str) -> str:
    """Returns the model of the processor, or of the first GPU, on which a provider of ONNX Runtime runs; "" if nobody
    tells."""
    if provider == "CUDAExecutionProvider":
        first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
        command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader", "-i", first]
        with suppress(OSError, subprocess.SubprocessError):
            done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
            return done.stdout.partition("\n")[0].strip()
        return ""
    with suppress(OSError), Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
