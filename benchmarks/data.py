"""Measures the data pipeline at the size of WMT14: memory, padding, and the speed at which it delivers batches.

    python -m benchmarks.data                 # 4.5 million synthetic pairs: some minutes, 1 GB of disk
    python -m benchmarks.data --pairs 20000

The command prints one JSON object. Every stage runs in a process of its own, so its memory figures are its own:
`resident_peak` is the peak of resident memory. At the end of the stage, `anonymous` memory belongs to the process, and
`mapped` memory to files such as the tokenised corpus, which the system may drop.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.contest import at_least_one, in_process
from keras_transformer.core.errors import exit_status
from keras_transformer.text.batch_sampler import BatchPlan
from keras_transformer.text.feeding import Place, dataset, generator
from keras_transformer.text.subword_sampling import SubwordSampler
from keras_transformer.text.tokenized import TokenizedCorpus
from keras_transformer.text.tokenizer import PAD, Tokenizer

WORDS = 20_000
MEAN_WORDS = 24
VOCABULARY_SIZE = 6_000
TOKEN_BUDGETS = (25_000, 4_096)
SAMPLED_LINES = 20_000
STATIC_SHAPES = (0, 3, 4, 6, 8, 12, 16)
DELIVERED_BATCHES = 2_000


def synthetic_pairs(count: int, seed: int = 1) -> Iterator[tuple[str, str]]:
    """Yields pairs of random words. Lengths are geometric, words follow Zipf's law, both sides are about as long."""
    generator = np.random.default_rng(seed)
    letters = np.array(list("etaoinshrdlu"))
    words = ["".join(generator.choice(letters, length)) for length in generator.integers(2, 9, WORDS)]
    for start in range(0, count, 10_000):
        lengths = np.minimum(generator.geometric(1 / MEAN_WORDS, min(10_000, count - start)) + 2, 150)
        target_lengths = np.maximum(np.rint(lengths * generator.normal(1, 0.15, len(lengths))), 1).astype(int)
        drawn = (generator.pareto(0.8, int(lengths.sum() + target_lengths.sum())) * 10).astype(np.int64) % WORDS
        text = iter([words[index] for index in drawn.tolist()])
        for source, target in zip(lengths.tolist(), target_lengths.tolist(), strict=True):
            yield " ".join(islice(text, source)), " ".join(islice(text, target))


def memory_mib() -> dict[str, int]:
    """Returns the memory of this process in MiB, as Linux counts it."""
    status = dict(re.findall(r"(\w+):\s+(\d+) kB", Path("/proc/self/status").read_text()))
    names = {"resident_peak": "VmHWM", "anonymous": "RssAnon", "mapped": "RssFile"}
    return {name: int(status[key]) // 1024 for name, key in names.items()}


def train_tokenizer(folder: Path, pairs: int) -> dict[str, Any]:
    """Trains a joint vocabulary on the first lines."""
    sample = islice(chain.from_iterable(synthetic_pairs(pairs)), 100_000)
    Tokenizer.train(sample, min(VOCABULARY_SIZE, 100 + pairs // 10)).save(folder / "tokenizer.model")
    return {}


def build_cache(folder: Path, pairs: int) -> dict[str, Any]:
    """Writes the tokenised corpus to disk."""
    tokenizer = Tokenizer.load(folder / "tokenizer.model")
    corpus = TokenizedCorpus.build(folder / "tokens", synthetic_pairs(pairs), tokenizer, tokenizer, num_threads=2)
    size = sum(path.stat().st_size for path in corpus.folder.iterdir())
    return {
        "report": str(corpus.report),
        "mean_target_tokens": round(float(corpus.target_lengths.mean()), 1),
        "disk_mib": size // 2**20,
    }


def deliver(folder: Path, token_budget: int, feed: Callable[..., Iterator[Any]]) -> dict[str, Any]:
    """Plans an epoch, and takes batches from it."""
    corpus = TokenizedCorpus.open(folder / "tokens")
    plan = BatchPlan(corpus, token_budget, seed=1)
    started = time.perf_counter()
    num_batches = plan.num_batches(0)
    planned = time.perf_counter()
    batches = feed(plan, Place())
    next(batches)  # the first batch waits for `tf.data` and TensorFlow to start
    delivering = time.perf_counter()
    slots = source_tokens = target_tokens = 0
    for inputs, labels, _ in islice(batches, min(max(num_batches - 1, 1), DELIVERED_BATCHES)):
        slots += inputs["source_ids"].size + labels.size
        source_tokens += int(np.count_nonzero(inputs["source_ids"] != PAD))
        target_tokens += int(np.count_nonzero(labels != PAD))
    seconds = time.perf_counter() - delivering
    return {
        "batches_an_epoch": num_batches,
        "planning_seconds": round(planned - started, 2),
        "padding_percent": round(100 * (1 - (source_tokens + target_tokens) / slots), 2),
        "target_tokens_per_second": int(target_tokens / seconds),
        "memory_mib": memory_mib(),
    }


def deliver_arrays(folder: Path, token_budget: int) -> dict[str, Any]:
    """Takes batches as NumPy arrays, as training on JAX and PyTorch does."""
    return deliver(folder, token_budget, generator)


def deliver_dataset(folder: Path, token_budget: int) -> dict[str, Any]:
    """Takes batches through `tf.data`. The memory includes TensorFlow's own."""
    return deliver(folder, token_budget, lambda plan, place: dataset(plan, place).as_numpy_iterator())


def pad_to_shapes(folder: Path, token_budget: int) -> dict[str, Any]:
    """Computes the padding of an epoch's batches of few shapes, as XLA takes them; 0 stands for free widths."""
    corpus = TokenizedCorpus.open(folder / "tokens")
    real = int(corpus.source_lengths.sum() + corpus.target_lengths.sum())
    percents = {}
    for count in STATIC_SHAPES:
        plan = BatchPlan(corpus, token_budget, seed=1, static_shapes=count)
        batches = (plan.batch(Place(0, index)) for index in range(plan.num_batches(0)))
        slots = sum(batch.inputs["source_ids"].size + batch.labels.size for batch in batches)
        percents[str(count)] = round(100 * (1 - real / slots), 1)
    return {"padding_percent": percents}


def draw_subwords(folder: Path, pairs: int) -> dict[str, Any]:
    """Samples subwords. In training, one process for each side does this for the next epoch."""
    tokenizer = Tokenizer.load(folder / "tokenizer.model")
    sampler = SubwordSampler(tokenizer, 0.2, "1")
    lines = [target for _, target in islice(synthetic_pairs(pairs), SAMPLED_LINES)]
    started = time.perf_counter()
    tokens = sum(len(sampler.sample(line)) + 1 for line in lines)
    seconds = time.perf_counter() - started
    return {
        "lines": len(lines),
        "lines_per_second": int(len(lines) / seconds),
        "target_tokens_per_second": int(tokens / seconds),
    }


def measured(stage: Callable[..., dict[str, Any]], *args: Any) -> dict[str, Any]:
    """Runs a stage. Returns its result with its seconds and its memory."""
    started = time.perf_counter()
    result = stage(*args)
    return {"seconds": round(time.perf_counter() - started, 1), "memory_mib": memory_mib()} | result


def measured_apart(stage: Callable[..., dict[str, Any]], *args: Any) -> dict[str, Any]:
    """Runs `measured` in a fresh process, so that no stage counts another's memory."""
    return in_process(measured, stage, *args)


def benchmark(folder: Path, pairs: int, run: Callable[..., dict[str, Any]] = measured_apart) -> dict[str, Any]:
    """Runs all stages. Returns their results by name."""
    results = {
        "pairs": pairs,
        "tokenizer": run(train_tokenizer, folder, pairs),
        "build": run(build_cache, folder, pairs),
    }
    for token_budget in TOKEN_BUDGETS:
        results[f"arrays_{token_budget}"] = run(deliver_arrays, folder, token_budget)
        results[f"dataset_{token_budget}"] = run(deliver_dataset, folder, token_budget)
        results[f"shapes_{token_budget}"] = run(pad_to_shapes, folder, token_budget)
    return results | {"sampling": run(draw_subwords, folder, pairs)}


def main() -> None:
    """Runs the benchmark in a temporary folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--pairs", type=at_least_one, default=4_500_000, help="size of the corpus (default: %(default)s)"
    )
    pairs = parser.parse_args().pairs
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(benchmark(Path(folder), pairs), indent=2))


if __name__ == "__main__":
    sys.exit(exit_status(main))
