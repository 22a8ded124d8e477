"""Makes a corpus into batches: cleans the text, learns the vocabulary, tokenises the text, plans the batches."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import chain, islice, starmap
from os.path import commonprefix
from pathlib import Path
from typing import Any, NamedTuple

from keras_transformer.core.errors import RequestError, say, warn
from keras_transformer.core.files import write_text
from keras_transformer.runs.run_folder import RunFolder
from keras_transformer.text.batch_sampler import BatchPlan
from keras_transformer.text.cleaning import Cleaning, Overlap, cleaned
from keras_transformer.text.corpora import MAX_VALIDATION_PAIRS, Pair, directions, mixed
from keras_transformer.text.huggingface_tokenizer import load_tokenizer
from keras_transformer.text.lines import plain
from keras_transformer.text.normalization import normalizer_of, split_normalization
from keras_transformer.text.splitting import usual_count
from keras_transformer.text.tokenized import FirstIds, TokenizedCorpus
from keras_transformer.text.tokenizer import SPACE, Tokenizer, VocabularyTooLarge
from keras_transformer.training.common_settings import PairSettings, Settings, TextSettings
from keras_transformer.training.task import Prepared, Run

PAIR_CHARACTERS = 60  # as much of an example is shown
MOST_CHECKED = 100_000  # target lines
MOST_CHANGED = 0.001  # the share of changed lines that brings no warning
NUM_EXAMPLES, CHANGE_CHARACTERS = 3, 30


def clean(run: Run[Settings]) -> None:
    """Cleans the training pairs and the extra pairs, if the run has `--clean`.

    The text is read when the run first asks for it. A run that goes on with text that is tokenised already does not.
    """
    if not (isinstance(run.settings, PairSettings) and run.settings.clean):
        return
    corpus, folder = run.corpus, run.folder
    run.corpus = cleaned(corpus, lambda found: _tell_of_cleaning(run, corpus.name, found, folder.cleaning))
    if more := corpus.more:
        further = cleaned(more, lambda found: _tell_of_cleaning(run, more.name, found, folder.cleaning_more))
        run.corpus = replace(run.corpus, more=further)


def tell_of_overlap(overlap: Overlap) -> None:
    """Warns of validation lines that are in the training text."""
    if overlap.num_lines:
        warn(
            f"{overlap.num_lines:,} of {overlap.num_all:,} validation sources are in the training text too, so "
            "validation tells less of new text: --clean leaves them out of training"
        )


def _tell_of_cleaning(run: Run[Settings], name: str, found: Cleaning, report_path: Path) -> None:
    say(f"{name}: --clean keeps {found.num_kept:,} of {len(found.reasons):,} pairs")
    for reason, examples in found.examples.items():
        first = examples[0]
        place = f"line {first.line:,}" + (f" as line {first.like:,}" if first.like else "")
        shown = textwrap.shorten(f"{first.source} ||| {first.target}", PAIR_CHARACTERS, placeholder=" …")
        say(f"  {found.counts[reason]:>9,}  {reason:<36}  {place}: {shown}")
    if run.is_chief:
        source, target = found.scripts
        report = {
            "pairs": len(found.reasons),
            "kept": found.num_kept,
            "source_scripts": source,
            "target_scripts": target,
            "left_out": found.counts,
            "examples": {reason: [asdict(one) for one in examples] for reason, examples in found.examples.items()},
        }
        write_text(report_path, json.dumps(report, ensure_ascii=False, indent=1) + "\n")
        say(f"{report_path} has more examples")


class Tokenizers(NamedTuple):
    """The tokenizers of both languages; with a joint vocabulary one and the same."""

    source: Tokenizer
    target: Tokenizer


@dataclass(frozen=True)
class Text(Prepared):
    """A run's text, ready to train on."""

    tokenizers: Tokenizers
    valid_sources: list[str]
    valid_targets: list[str]

    def bleu_sentences(self, count: int) -> tuple[list[str], list[str]]:
        """The validation sentences that BLEU is measured on, and their references."""
        return self.valid_sources[:count], self.valid_targets[:count]


def prepare_text(
    run: Run[Any], cache: Path, num_replicas: int, first_ids_of: Callable[[Tokenizers], FirstIds] = lambda _: ((), ())
) -> Text:
    """Learns the vocabulary, tokenises the corpus once, and plans its batches.

    Args:
        run: the chief writes the vocabulary and the validation text into its folder.
        cache: where the tokenised text goes.
        num_replicas: how many replicas all workers have together.
        first_ids_of: the ids with which each source and each target begins, by the tokenizers.

    Raises:
        RequestError: the text does not support the vocabulary, the vocabulary has no piece for a tag, or cleaning
            leaves nothing of the text.
    """
    settings = run.settings
    tags = _mix(run)
    tokenizers = _tokenizers(run, tags)
    if "sentences_per_line" not in run.config.corpus:  # a run that goes on knows, and reads no text again
        lines = (source for source, _ in run.corpus.train())
        run.config.corpus["sentences_per_line"] = usual_count(lines, run.corpus.source_language)
    record_vocabularies(run, tokenizers)
    valid_pairs = validation_pairs(run)
    options = {"keep_text": settings.sampling > 0, "first_ids": first_ids_of(tokenizers)}
    train, valid = tokenized(run, cache, valid_pairs, tokenizers, **options)
    say(f"{run.corpus.name}: {train.report}")
    tell_of_changed_targets(run, tokenizers.target, train.report.kept)
    plan = BatchPlan(
        train, settings.token_budget, settings.seed, num_replicas, settings.accumulate, settings.static_shapes or 0,
        sampling=settings.sampling,
    )  # fmt: skip
    valid_plan = BatchPlan(valid, settings.token_budget, num_replicas=num_replicas, shuffle=False)
    sources, targets = [source for source, _ in valid_pairs], [target for _, target in valid_pairs]
    return Text(plan, valid_plan, tokenizers, sources, targets)


def _mix(run: Run[Any]) -> list[str]:
    """Puts further pairs and the other direction into the training text, where asked for; returns the tags."""
    settings, corpus = run.settings, run.corpus
    if settings.both_directions and settings.more_tag in directions(corpus):
        raise RequestError(f"--more-tag {settings.more_tag} is the tag of a direction; choose another, such as <bt>")
    run.corpus = mixed(corpus, settings.copies, settings.more_tag, settings.both_directions)
    return [*(directions(corpus) if settings.both_directions else ()), *filter(None, [settings.more_tag])]


def validation_pairs(run: Run[Settings]) -> list[Pair]:
    """The pairs that a run validates on. The chief writes them into the run folder."""
    pairs = list(islice(run.corpus.valid(), MAX_VALIDATION_PAIRS))
    if run.is_chief:
        write_text(run.folder.valid_source, "".join(f"{source}\n" for source, _ in pairs))
        write_text(run.folder.valid_target, "".join(f"{target}\n" for _, target in pairs))
    return pairs


def tokenized(
    run: Run[PairSettings],
    cache: Path,
    valid_pairs: list[Pair],
    tokenizers: Tokenizers,
    keep_text: bool = False,
    **options: object,
) -> tuple[TokenizedCorpus, TokenizedCorpus]:
    """The pairs of training and of validation as ids, each tokenised once.

    Args:
        run: with the corpus.
        cache: where the ids go.
        valid_pairs: the pairs to validate on.
        tokenizers: the tokenizers of source and target.
        keep_text: whether to keep the text of training; see `TokenizedCorpus.build`.
        options: see `TokenizedCorpus.build`.

    Raises:
        RequestError: cleaning leaves nothing of one of them; the message names the files.
    """
    settings = run.settings
    with naming_files(_validation_files(settings)):
        valid = _tokenized(cache / "validation", valid_pairs, tokenizers, settings, **options)
    overlap = Overlap((source for source, _ in run.corpus.valid()), tokenizers.source.tags)
    pairs = overlap.watched(run.corpus.train())
    with naming_files(training_files(settings)):
        train = _tokenized(cache / "train", pairs, tokenizers, settings, keep_text=keep_text, **options)
    tell_of_overlap(overlap)
    train.report.held_out = run.corpus.num_held_out
    return train, valid


def tell_of_changed_targets(run: Run[Settings], tokenizer: Tokenizer, count: int) -> None:
    """Tells how many target lines the vocabulary does not give back as they were, but for what cleaning changes.

    It looks at every second, third and so on of more than `MOST_CHECKED` lines. config.json keeps the share.

    Args:
        run: with the corpus.
        tokenizer: the tokenizer of the target.
        count: about how many lines there are.
    """
    if run.is_resumed:
        return
    step, identity = -(-count // MOST_CHECKED), normalizer_of("identity")
    checked = (plain(target) for _, target in islice(run.corpus.train(), 0, None, max(step, 1)))
    lines = [identity.normalize(line).replace(SPACE, " ").strip() for line in checked]
    pairs = list(zip(lines, tokenizer.decode(tokenizer.encode(lines, run.settings.threads or 1)), strict=True))
    changed = [pair for pair in pairs if pair[0] != pair[1]]
    run.config.corpus["changed_targets"] = share = len(changed) / max(1, len(pairs))
    told = f"{run.corpus.name}: the vocabulary changes {share:.2%} of the target lines"
    if changed:
        told += ", such as " + "; ".join(starmap(_told_change, changed[:NUM_EXAMPLES]))
    if share <= MOST_CHANGED:
        say(told)
    else:
        warn(f"{told}: `--normalization lossless` keeps what it can write, and --byte-fallback writes everything")


def _told_change(line: str, decoded: str) -> str:
    """The places where two lines part, with a few characters around."""
    at = max(0, len(commonprefix([line, decoded])) - CHANGE_CHARACTERS // 2)
    return f"{line[at : at + CHANGE_CHARACTERS]!r}, which becomes {decoded[at : at + CHANGE_CHARACTERS]!r}"


def training_files(settings: PairSettings) -> str:
    """The names of the files to train on, or of the corpus."""
    return f"{settings.source}, {settings.target}" if settings.source else f"{settings.dataset}"


def _validation_files(settings: PairSettings) -> str:
    if settings.valid_source:
        return f"{settings.valid_source}, {settings.valid_target}"
    return f"{training_files(settings)}, the lines held out for validation"


@contextmanager
def naming_files(files: str) -> Iterator[None]:
    """Puts the names of the files before the message of a RequestError."""
    try:
        yield
    except RequestError as error:
        raise RequestError(f"{files}: {error}") from error


def one_tokenizer(run: Run[TextSettings], lines: Callable[[], Iterator[str]], **kind: bool) -> Tokenizer:
    """Returns and records the vocabulary of a run with one language: its own, that of `--init-from` or `--tokenizer`,
    or one that it learns.
    """
    path, _ = run.folder.tokenizers(separate=False)
    own = run.is_resumed and path.is_file()
    tokenizer = load_tokenizer(path) if own else _new_tokenizer(run, path, lines, **kind)
    record_vocabularies(run, Tokenizers(tokenizer, tokenizer))
    return tokenizer


def _new_tokenizer(run: Run[TextSettings], path: Path, lines: Callable[[], Iterator[str]], **kind: bool) -> Tokenizer:
    settings = run.settings
    if settings.init_from:
        tokenizer = load_tokenizer(RunFolder(settings.init_from).tokenizers(separate=False)[0])
    elif settings.tokenizer:
        tokenizer = Tokenizer.load(settings.tokenizer)
    else:
        tokenizer = train_tokenizer(run, lines, **kind)
    needs = {
        "keeps_text": ("a piece for line breaks", tokenizer.has_line_breaks),
        "has_mask": ("a mask", tokenizer.has_mask),
    }
    for piece, is_there in (needs[name] for name in kind):
        if not is_there:
            raise RequestError(
                f"expected a vocabulary with {piece}, as a run of --task {settings.task} has; received that of "
                f"{settings.tokenizer or settings.init_from}"
            )
    if run.is_chief:
        tokenizer.save(path.with_suffix(tokenizer.suffix))
    return tokenizer


def _tokenizers(run: Run[Any], tags: list[str]) -> Tokenizers:
    tokenizers = _tokenizers_of(run, tags)
    if run.settings.sampling and not tokenizers.source.is_sentencepiece:
        why = f"--sampling draws among the pieces of SentencePiece; {run.settings.init_from} has another vocabulary"
        if "sampling" in run.given:
            raise RequestError(f"{why}: leave it out")
        say(f"--sampling {run.settings.sampling} gives way to 0: {why}")
        run.settings = replace(run.settings, sampling=0.0)
        run.config.settings = run.settings.as_dict()
    if missing := [tag for tag in tags if tag not in tokenizers.source.tags]:
        raise RequestError(
            f"expected a vocabulary with the tag {missing[0]} as one piece; received that of "
            f"{run.settings.tokenizer or run.settings.init_from}: leave it out, or begin with a run that has the tag"
        )
    return tokenizers


def _tokenizers_of(run: Run[Any], tags: list[str]) -> Tokenizers:
    settings, folder = run.settings, run.folder
    if run.is_resumed and all(path.is_file() for path in _files(folder, settings)):
        return Tokenizers(*map(load_tokenizer, _files(folder, settings)))
    if settings.init_from:
        tokenizers = Tokenizers(*map(load_tokenizer, _files(RunFolder(settings.init_from), settings)))
    elif settings.tokenizer:
        joint = Tokenizer.load(settings.tokenizer)
        tokenizers = Tokenizers(joint, joint)
    else:
        with naming_files(training_files(settings)):
            tokenizers = _learned_tokenizers(run, tags)
    if run.is_chief:
        are_two = settings.has_two_vocabularies or tokenizers.source.model != tokenizers.target.model
        for path, tokenizer in zip(folder.tokenizers(are_two), tokenizers, strict=True):
            tokenizer.save(path.with_suffix(tokenizer.suffix))
    return tokenizers


def _files(folder: RunFolder, settings: Settings) -> tuple[Path, Path]:
    return folder.tokenizers(settings.has_two_vocabularies or folder.has_two_tokenizers)


def _learned_tokenizers(run: Run[Any], tags: list[str]) -> Tokenizers:
    pairs, names = run.corpus.train, split_normalization(run.settings.normalization)
    if run.settings.has_two_vocabularies:
        source = train_tokenizer(run, lambda: (source for source, _ in pairs()), tags=tags, normalization=names[0])
        target = train_tokenizer(run, lambda: (target for _, target in pairs()), normalization=names[1])
        return Tokenizers(source, target)
    if names[0] == names[1]:
        joint = train_tokenizer(run, lambda: chain.from_iterable(pairs()), tags=tags, normalization=names[0])
        return Tokenizers(joint, joint)
    rules = [normalizer_of(name) for name in names]

    def lines() -> Iterator[str]:
        return (rule.normalize(plain(line)) for pair in pairs() for rule, line in zip(rules, pair, strict=True))

    joint = train_tokenizer(run, lines, tags=tags, normalization="identity")
    return Tokenizers(*map(joint.normalized_by, names))


def train_tokenizer(run: Run[TextSettings], lines: Callable[[], Iterator[str]], **kind: Any) -> Tokenizer:
    """Learns a vocabulary. Where no flag gives its size, it may be smaller: the largest that the text supports.

    Args:
        run: with the size and the type of the vocabulary.
        lines: each call returns the text anew.
        kind: see `Tokenizer.train`.
    """
    settings = run.settings
    size = settings.vocabulary_size
    rules = split_normalization(settings.normalization)[0]
    kind = {"normalization": rules, "byte_fallback": settings.byte_fallback, **kind}
    while True:
        try:
            return Tokenizer.train(lines(), size, settings.vocabulary_type, settings.seed, **kind)
        except VocabularyTooLarge as error:
            if "vocabulary_size" in run.given or error.most >= size:
                raise
            say(f"the training text supports no vocabulary of {size:,} pieces: taking {error.most:,}")
            size = error.most


def record_vocabularies(run: Run[TextSettings], tokenizers: Tokenizers) -> None:
    """Puts the vocabulary into the run, and its sizes into config.json."""
    run.vocabulary = tokenizers.source
    sizes = {"vocabulary_size": tokenizers.target.vocabulary_size}
    if run.settings.has_two_vocabularies:
        sizes["source_vocabulary_size"] = tokenizers.source.vocabulary_size
    run.record(**sizes)


def _tokenized(
    folder: Path, pairs: Iterable[Pair], tokenizers: Tokenizers, settings: PairSettings, **options: Any
) -> TokenizedCorpus:
    try:
        return TokenizedCorpus.open(folder)
    except RequestError:
        return TokenizedCorpus.build(
            folder,
            pairs,
            *tokenizers,
            **{"max_length": settings.max_length, "num_threads": settings.threads or 1, **options},
        )
