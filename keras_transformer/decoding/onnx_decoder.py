"""Decodes with exported graphs in ONNX Runtime; neither Keras nor TensorFlow is imported."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from keras_transformer import ops
from keras_transformer.checking.probes import Answer, Differs, Probe, ProbesFile, check, check_once
from keras_transformer.core.errors import RequestError
from keras_transformer.core.machine import num_cores
from keras_transformer.core.schema import having, list_of, one_of, or_null, parse_json, whole
from keras_transformer.decoding.computations import Aligned, search_or_sampling
from keras_transformer.decoding.decoder import Decoder, Emitted, Found
from keras_transformer.decoding.onnx_graphs import EncoderStepModel, open_session, run, runtime_of
from keras_transformer.runs.export_folder import ALIGNED, PRECISIONS, PROVIDERS, Graphs
from keras_transformer.spec.options import Config
from keras_transformer.spec.search_options import (
    DECODING,
    OF_A_MODEL,
    OF_GUARDS,
    SearchOptions,
    longest,
    penalty,
    require,
)
from keras_transformer.text.sentences import Arrays, Ids, Sentence, padded
from keras_transformer.text.splitting import LearnedText
from keras_transformer.text.tokenizer import END, PAD, START

SIZES, SIZE = ("max_source_length", "vocabulary_size", "num_control_ids"), whole(0, 2**31 - 1)
# What a graph must tell.
OF_GRAPH = having(decoding=str, model=str, precision=one_of(PRECISIONS))
MODEL = having(**dict.fromkeys(SIZES, SIZE), source_vocabulary_size=or_null(SIZE))
FIRST = ("source_tags", "beginning")  # lists of ids that a graph may tell
LARGE_BYTES = 32 * 2**20  # larger graphs are worth several threads in one operation
BEST, N_BEST = ["target_ids", "score"], ["n_best_ids", "n_best_scores"]  # the translator's outputs
# The graphs whose answers are checked together, by the name of the one that is run most.
CHECKED = {"translate": ("translate",), ALIGNED: (ALIGNED,), "step": ("encoder", "step")}


class OnnxDecoder(Decoder):
    """Decodes with the graphs that the export writes. Threads may share it.

    The search inside the translator runs where it is the search that is asked for. Other numbers of beams, other
    lengths, prefixes, sampling and given translations take the two halves, with the search in NumPy. Each first answers
    the probes, see `probes`.

    Args:
        graphs: where the graphs are.
        num_threads: how many threads; by default one for each core.
        provider: what computes: "cpu"; "cuda", the first GPU; or "auto", the GPU if this ONNX Runtime can use it.

    Raises:
        RequestError: a graph is missing, damaged or not one that this project wrote, or there is no such provider.
    """

    def __init__(self, graphs: Graphs, num_threads: int | None = None, provider: str = "auto"):
        require("provider", provider, one_of(PROVIDERS))
        self.graphs = graphs
        self.provider = provider
        self.num_parallel = num_threads or num_cores()
        # The graphs of small models gain nothing from several threads in one operation: a lone sentence takes one.
        self._num_inner = self.num_parallel if graphs.num_bytes() >= LARGE_BYTES else 1
        self._lock = threading.Lock()
        self._checking = threading.RLock()
        self._checked: set[str] = set()
        self._sessions: dict[Path, Any] = {}
        self.metadata = self._read_metadata()
        self.config: Config = self.metadata["model"]
        sizes = {name: self.config[name] for name in ("num_control_ids", "vocabulary_size")}
        self._halves: Any = EncoderStepModel(self._session, sizes)
        self.max_source_length = self.config["max_source_length"]
        baked = self.metadata["decoding"]
        self.own_search = {name: baked[name] for name in (*OF_A_MODEL, *OF_GUARDS) if name in baked}
        self.learned_text = LearnedText.of_export(self.metadata)
        self.source_tags, self.beginning = (self.metadata[name] for name in FIRST)
        self.vocabulary_sizes = self.config["source_vocabulary_size"], self.config["vocabulary_size"]

    def __repr__(self) -> str:
        return f"{self.graphs.main} in ONNX Runtime, {self.metadata['precision']}"

    @property
    def tells_alignments(self) -> bool:  # type: ignore[override]
        return "alignment" in self.metadata and bool(self.graphs.translate_aligned or self.graphs.step)

    def check_source_length(self, length: int) -> None:
        if length > self.max_source_length:
            raise RequestError(
                f"max_source_length must be at most {self.max_source_length}, to which the graph cuts its sources; "
                f"received: {length}"
            )

    def require_checked(self, options: SearchOptions) -> None:
        self._require_checked(graph_of(options) if self.serves(options) and not options.sampling else "step")

    def decode_all(self, batches: Sequence[list[Sentence]], options: SearchOptions) -> Iterator[list[Emitted]]:
        if self.num_parallel > 1 and sum(map(len, batches)) > 1:
            with self._lock:
                if self._num_inner > 1:
                    # From now on threads translate side by side, each with one thread in its operations. Those that
                    # translate now keep the sessions that they have.
                    self._num_inner, self._sessions = 1, {}
        return super().decode_all(batches, options)

    def search(self, arrays: Arrays, options: SearchOptions) -> Found:
        if not (self.serves(options) and self._begins_as(arrays.prefix_ids)):
            return self._by_halves(arrays, options)
        name = graph_of(options)
        self._require_checked(name)
        is_list = options.n_best > 1
        names = [*(N_BEST if is_list else BEST), *([f"{'n_best_' * is_list}alignment"] if options.alignments else [])]
        found = run(self._session(name), names, self._feeds(arrays.source_ids, arrays.prefix_ids))
        return Found(*(found if is_list else [array[:, None] for array in found]))

    def serves(self, options: SearchOptions) -> bool:
        """Tells whether the search inside the translator is the one that the options describe."""
        name, baked = graph_of(options), self.metadata["decoding"]
        return (
            getattr(self.graphs, name) is not None
            and options.active_guards() == {one: baked[one] for one in OF_GUARDS if one in baked}
            and (options.num_beams, options.length_penalty, options.max_length) == tuple(map(baked.get, OF_A_MODEL))
            and (options.n_best == 1 or (self._has_list(name) and options.n_best == baked.get("n_best")))
        )

    def _begins_as(self, prefix_ids: np.ndarray) -> bool:
        """Tells whether translations are to begin as the graph makes them begin, and go on freely."""
        if self._takes_prefix():
            return True
        own = np.array(self.beginning, prefix_ids.dtype)
        return np.array_equal(prefix_ids[:, : len(own)], np.tile(own, (len(prefix_ids), 1))) and not np.any(
            prefix_ids[:, len(own) :]
        )

    def _takes_prefix(self) -> bool:
        return any(given.name == "prefix_ids" for given in self._session(self._searching).get_inputs())

    def _feeds(self, source_ids: np.ndarray, prefix_ids: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the inputs of the translator."""
        prefix = {"prefix_ids": prefix_ids.astype("int32")} if self._takes_prefix() else {}
        return {"source_ids": source_ids, **prefix}

    @property
    def _searching(self) -> str:
        """The name of a graph that searches; graphs of one model differ in what they tell alone."""
        return "translate" if self.graphs.translate else ALIGNED

    def _has_list(self, name: str) -> bool:
        return any(output.name == N_BEST[0] for output in self._session(name).get_outputs())

    def sample(self, arrays: Arrays, uniforms: np.ndarray, options: SearchOptions) -> Found:
        return self._by_halves(arrays, options, uniforms)

    def _by_halves(self, arrays: Arrays, options: SearchOptions, *uniforms: np.ndarray) -> Found:
        """Searches or samples in NumPy, with the encoder and the step as graphs."""
        self._require_checked("step")
        if options.alignments and not self._halves.tells_alignments:
            raise RequestError(
                f"{self.graphs.main} tells no alignments, nor does a graph beside it, because an older version wrote "
                "them: export the run again, or translate with the run"
            )
        with ops.on(ops.NUMPY):
            model = Aligned(self._halves) if options.alignments else self._halves
            ids, scores = search_or_sampling(options).run(model, *arrays, *uniforms)
            if not isinstance(model, Aligned):
                return Found(ids, scores)
            ids, places = model.apart(ids)
            return Found(ids, scores, places)

    def align(self, emitted: list[Emitted]) -> list[tuple[tuple[int, int], ...]]:
        counts = [len(one.ids) - (END in one.ids) for one in emitted]
        return [
            tuple((place, target) for target, place in enumerate(one.places[:count]))
            for one, count in zip(emitted, counts, strict=True)
        ]

    def log_probs(self, sources: list[Ids], targets: list[Ids]) -> np.ndarray:
        labels, num_positions = padded(targets), longest(self.max_source_length)
        if labels.shape[1] > num_positions:
            raise RequestError(
                f"expected translations of at most {num_positions} pieces, for which {self.graphs.main} has positions; "
                f"received one of {labels.shape[1]}: cut it, or give the run folder"
            )
        token_ids = np.pad(labels, [(0, 0), (1, 0)], constant_values=START)
        self._require_checked("step")
        source_ids = padded([[*source, END] for source in sources])
        cache = self._halves.init_cache(self._halves.encode(source_ids), source_ids, 1, labels.shape[1])
        totals = np.zeros(len(labels), "float32")
        for index in range(labels.shape[1]):
            logits, cache = self._halves.step(token_ids[:, index : index + 1], cache, index)
            with ops.on(ops.NUMPY):
                log_probs = ops.log_softmax(logits[:, 0])
            chosen = np.take_along_axis(log_probs, labels[:, index : index + 1], axis=-1)[:, 0]
            totals += np.where(labels[:, index] == PAD, 0, chosen)
        return totals

    def _session(self, name: str) -> Any:
        """Returns the session of a graph, and opens it when it is first used."""
        path = getattr(self.graphs, name)
        if path is None:
            raise RequestError(
                f"this search needs encoder.onnx and step.onnx, which are not beside {self.graphs.main}: export onnx "
                "again, by the recorder, or ask for the search inside "
                f"{self.graphs.main.name}: {self.metadata['decoding']}"
            )
        with self._lock:
            if path not in self._sessions:
                self._sessions[path] = open_session(path, self._num_inner, self.provider)
            return self._sessions[path]

    def _require_checked(self, name: str) -> None:
        """Checks the translator, or with the name "step" both halves, unless they were checked."""
        with self._checking:  # other threads wait; the check itself comes by here again
            if name in self._checked:
                return
            self._checked.add(name)
            try:
                self._check(name)
            except BaseException:
                self._checked.discard(name)
                raise

    def _check(self, name: str) -> None:
        read = partial(Probe.read, vocabulary_sizes=self.vocabulary_sizes, max_source_length=self.max_source_length)
        file = ProbesFile.read(self.graphs.probes, read)
        if not file.probes:
            return
        searches = name != "step"
        runtime = runtime_of(self._session(name))
        paths = [path for graph, path in self.graphs.present() if graph in CHECKED[name]]

        def compare() -> None:
            alpha = self.metadata["decoding"]["length_penalty"] if searches else 0.0
            answers = self._searched(name, file.probes, alpha) if searches else self._forced(file.probes)
            check(file.probes, answers, self.metadata["precision"], alpha)

        check_once(file, paths, runtime, compare)

    def _searched(self, name: str, probes: Sequence[Probe], length_penalty: float) -> list[list[Answer]]:
        """Searches for each probe: returns the best answer, and then the list if the graph has one."""
        width = 1 + max(len(probe.source_ids) for probe in probes)  # every row has padding
        source_ids = padded([probe.source_ids for probe in probes], width)
        names = [*BEST, *(N_BEST if self._has_list(name) else []), *(["alignment"] if name == ALIGNED else [])]
        own = np.tile(self.beginning, (len(source_ids), 1))
        ids, scores, *listed = run(self._session(name), names, self._feeds(source_ids, own))
        if ids.ndim != 2 or not len(ids) == scores.size == len(probes):
            raise Differs(f"expected {len(probes)} translations; received {ids.shape} ids and {scores.shape} scores")
        aligned = [row[row >= 0].tolist() for row in listed.pop()] if name == ALIGNED else [[]] * len(ids)
        rows = [[pair] for pair in zip(ids, scores, strict=True)]
        for row, ids, scores in zip(rows, *listed, strict=True) if listed else ():
            row += [(some, score) for some, score in zip(ids, scores, strict=True) if score != -np.inf]
        found = [[answer(row, float(score), length_penalty) for row, score in pairs] for pairs in rows]
        return [
            [best._replace(alignment=places), *others] for (best, *others), places in zip(found, aligned, strict=True)
        ]

    def _forced(self, probes: Sequence[Probe]) -> list[list[Answer]]:
        """Returns the model's best hypothesis of each probe, with log P by the two halves."""
        ids = [probe.hypotheses[0].ids for probe in probes]
        log_probs = self.log_probs([probe.source_ids[:-1] for probe in probes], ids)
        return [[Answer(row, float(log_prob))] for row, log_prob in zip(ids, log_probs, strict=True)]

    def _read_metadata(self) -> Config:
        searches = bool(self.graphs.translate or self.graphs.translate_aligned)
        session = self._session(self._searching if searches else "step")
        written = session.get_modelmeta().custom_metadata_map
        try:
            session_output = session.get_outputs()[0].name
            if session_output != ("target_ids" if searches else "logits"):
                raise ValueError(session_output)
            OF_GRAPH.checked(written)
            decoding, model = parse_json(written["decoding"], DECODING), parse_json(written["model"], MODEL)
            ids = list_of(whole(0, model["vocabulary_size"] - 1))
            first = {name: parse_json(written.get(name, "[]"), ids) for name in FIRST}
            return {**written, "model": model, "decoding": decoding, **first}
        except ValueError:
            raise RequestError(f"{self.graphs.main} is not the graph that an export has by this name") from None


def graph_of(options: SearchOptions) -> str:
    """Returns the name of the graph whose search gives what is asked for."""
    return ALIGNED if options.alignments else "translate"


def answer(row: np.ndarray, score: float, length_penalty: float) -> Answer:
    """Makes an answer of the ids of a row and of its score."""
    ids = [int(id) for id in row if id != PAD]
    return Answer(ids, score * penalty(len(ids), length_penalty))
