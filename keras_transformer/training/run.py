"""A training run from flags to `model.keras`: the parts that train.py puts one after the other."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from keras_transformer import family
from keras_transformer.errors import JobError, RequestError, say, warn
from keras_transformer.files import check_writable, write_text
from keras_transformer.models import count_parameters, make_model
from keras_transformer.run_folder import (
    RunFolder,
    check_model,
    load_model,
    read_config,
    versions,
    write_config,
    writer,
)
from keras_transformer.text.corpora import Corpus, corpus_from_files, load_corpus
from keras_transformer.text.tokenizer import Tokenizer, VocabularyTooLarge
from keras_transformer.training.settings import (
    MODEL_SETTINGS,
    NOT_INHERITED,
    Settings,
    as_given,
    inherited_from,
    resolve,
    resumed,
    spelled,
    warm_up_of_fine_tuning,
)

MAX_VALIDATION_PAIRS = 2_000
# Accuracy and perplexity pass over all logits once more: in training, a sample of the steps will do.
METRICS_EVERY = 10
# What a run that is fine-tuned cannot change.
SIZES = [name for name in MODEL_SETTINGS if name not in ("dropout", "attention_dropout", "vocabulary_size")]


@dataclass
class Run:
    """A run about to train: what was asked for, where, and on what."""

    settings: Settings
    folder: RunFolder
    corpus: Corpus
    config: dict[str, Any]
    is_chief: bool = True
    is_resumed: bool = False
    # Where the text supports no more, and nobody asked for the size; where a run is resumed before it has a vocabulary,
    # it is not known whether somebody did.
    lowers_vocabulary: bool = False


@dataclass
class Text:
    """A run's text, ready to train on."""

    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer
    plan: Any  # BatchPlan of the training pairs
    valid_plan: Any
    valid_pairs: list[tuple[str, str]]


def open_run(given: dict[str, Any]) -> Run | None:
    """Settles the settings and looks at the folder and the corpus, before anything is written; None if there is
    nothing left to do.

    Raises:
        RequestError: the request is wrong: a setting, the folder, the corpus, or what they are together.
    """
    from keras_transformer.training import replicas

    is_chief = replicas.worker_index() == 0
    if given.get("resume") and given.get("overwrite"):
        raise RequestError("--resume continues a run and --overwrite removes it; received both: give one")
    if given.get("resume"):
        return _reopen(given, is_chief)
    stored = read_config(given["init_from"]) if given.get("init_from") else None
    settings, corpus = _settled(given, stored)
    if is_chief and stored is not None:
        _say_what_is_inherited(given, settings, corpus)
    _check_replicas(settings)
    if is_chief:
        _warn_of_what_cannot_pay(settings)
    folder = RunFolder(settings.folder)
    if is_chief:
        _check_folder(folder, settings)
    if is_chief and given.get("preset"):
        _say_what_the_recipe_sets(given, corpus, settings)
    config = {
        "model": _model_config(settings, stored),
        "settings": settings.as_dict(),
        "corpus": _corpus_config(corpus),
        "versions": versions(),
    }
    return Run(settings, folder, corpus, config, is_chief, lowers_vocabulary=given.get("vocabulary_size") is None)


def _reopen(given: dict[str, Any], is_chief: bool) -> Run | None:
    folder = RunFolder(_folder_to_resume(given))
    if not folder.is_run():
        raise RequestError(
            f"--resume: there is no run in {str(folder.path)!r}: check --out, or leave out --resume to begin one"
        )
    config = read_config(folder)
    settings = replace(resumed(config["settings"], given, writer(config)), out=str(folder.path))
    if _is_finished(config, settings) and _has_model(folder):
        say(f"{folder.path} is finished ({settings.steps} steps); a larger --steps extends it")
        return None
    _check_replicas(settings)
    corpus = _corpus(settings)
    if corpus.identity != config.get("corpus", {}).get("identity"):
        raise RequestError(
            "--resume: the training text is not the one that the run began with: restore it, or start another "
            "run with --out"
        )
    config["settings"] = settings.as_dict()
    if is_chief:
        _warn_of_what_cannot_pay(settings)
    return Run(settings, folder, corpus, config, is_chief, is_resumed=True, lowers_vocabulary=True)


def _folder_to_resume(given: dict[str, Any]) -> Path:
    known = {name: given[name] for name in ("dataset", "source", "preset", "out") if given.get(name) is not None}
    return Settings(**known).folder


def _has_model(folder: RunFolder) -> bool:
    """Whether `model.keras` is there and whole.

    Raises:
        RequestError: it is damaged, and there is no checkpoint to write it from.
    """
    from keras_transformer.training.checkpoints import Checkpoints

    if not folder.model.is_file():
        return False
    try:
        check_model(folder)
    except RequestError as error:
        if not Checkpoints(folder.checkpoints).whole_steps():
            raise RequestError(
                f"{error}; there is no checkpoint to write it from: begin anew with --overwrite"
            ) from error
        warn(f"{error}; writing it again")
        return False
    return True


def _is_finished(config: dict[str, Any], settings: Settings) -> bool:
    weights = config.get("weights", {})
    at_step = weights.get("at_step")
    return settings.steps == weights.get("asked_steps") or (isinstance(at_step, int) and at_step >= settings.steps)


def _settled(given: dict[str, Any], stored: dict[str, Any] | None) -> tuple[Settings, Corpus]:
    """Flags over the recipe of the corpus over the preset; with --init-from the sizes are those of that run, and its
    settings stand over the preset."""
    given = as_given(given)
    corpus = _corpus(resolve(given, {}))
    if stored is None:
        return resolve(given, corpus.recipe), corpus
    sizes = {name: spelled(name, stored["model"][name]) for name in SIZES}
    sizes["vocabulary_size"] = stored["model"]["vocabulary_size"]
    sizes["separate_vocabularies"] = stored["model"]["source_vocabulary_size"] is not None
    for name, size in sizes.items():
        if given.get(name) is not None and given[name] != size:
            flag = "--" + name.replace("_", "-")
            raise RequestError(f"--init-from: that run has {flag} {size}; received: {given[name]}; leave {flag} out")
    given, inherited = {**given, **sizes}, inherited_from(stored["settings"])
    settings = resolve(given, corpus.recipe, inherited)
    if not inherited:  # saved from a notebook: how it was trained is not known
        return settings, corpus
    asked = {name for name, value in given.items() if value is not None}
    if "steps" not in asked:  # the recipe's warm-up is for the recipe's steps
        asked |= corpus.recipe.keys()
    parent = Settings(**{**inherited, "hidden_dim": settings.hidden_dim})
    fitting = warm_up_of_fine_tuning(settings, parent, fits="warmup_steps" not in asked)
    return replace(settings, **{name: value for name, value in fitting.items() if name not in asked}), corpus


def _say_what_is_inherited(given: dict[str, Any], settings: Settings, corpus: Corpus) -> None:
    usual = resolve(given, corpus.recipe).as_dict()
    own = {*SIZES, *NOT_INHERITED, "preset", "vocabulary_size", "separate_vocabularies"}
    own |= {"warmup_steps", "learning_rate_factor"}  # said before
    kept = [f"{name} {value}" for name, value in settings.as_dict().items() if name not in own and value != usual[name]]
    say(
        f"fine-tuning {settings.init_from}: {settings.steps} steps with a warm-up of {settings.warmup_steps}, up to a "
        f"learning rate of {settings.learning_rate(settings.warmup_steps):.2g}; from that run, besides its sizes: "
        f"{', '.join(kept) or 'nothing'}; a flag wins"
    )


def _warn_of_what_cannot_pay(settings: Settings) -> None:
    if settings.warmup_steps > settings.steps:
        warn(
            f"the learning rate is still rising when the run ends: --warmup-steps is {settings.warmup_steps}, --steps "
            f"{settings.steps}; give a shorter warm-up, such as --warmup-steps {max(1, settings.steps // 10)}"
        )
    if settings.xla and not settings.static_shapes:
        warn("--xla compiles anew for every shape of a batch: give --static-shapes too, such as --static-shapes 8")


def _say_what_the_recipe_sets(given: dict[str, Any], corpus: Corpus, settings: Settings) -> None:
    asked = resolve(given, {})
    won = [name for name, value in corpus.recipe.items() if getattr(settings, name) == value != getattr(asked, name)]
    if won:
        flags = ", ".join(f"--{name.replace('_', '-')} {getattr(settings, name)}" for name in won)
        say(
            f"{corpus.name} brings a recipe, which wins over --preset {settings.preset}: {flags}; a flag wins over both"
        )


def _corpus(settings: Settings) -> Corpus:
    if settings.source is not None and settings.target is not None:
        return corpus_from_files(settings.source, settings.target, settings.valid_source, settings.valid_target)
    return load_corpus(settings.name, settings.data_dir)


def _check_replicas(settings: Settings) -> None:
    from keras_transformer.training import replicas

    replicas.parse_devices(settings.devices)
    replicas.num_workers()


def _check_folder(folder: RunFolder, settings: Settings) -> None:
    path = folder.path
    if folder.is_run() and not settings.overwrite:
        raise RequestError(
            f"{path} holds a run already: go on with --resume, remove it with --overwrite, or choose another --out"
        )
    if folder.is_run():
        read_config(folder)  # What --overwrite removes must be a run: other programs write a config.json too.
    elif path.is_dir() and any(path.iterdir()):
        raise RequestError(f"{path} holds files that are not a run's; choose an empty or a new folder with --out")
    check_writable(path)


def _model_config(settings: Settings, stored: dict[str, Any] | None) -> dict[str, Any]:
    config = settings.model_arguments()
    if settings.tokenizer:
        config["vocabulary_size"] = Tokenizer.load(settings.tokenizer).vocabulary_size
    config["source_vocabulary_size"] = config["vocabulary_size"] if settings.separate_vocabularies else None
    if stored is not None:
        of_vocabularies = ("source_vocabulary_size", "num_control_ids")
        config |= {name: stored["model"][name] for name in of_vocabularies}
    return {"kind": "translator", **family.complete(config)}


def _corpus_config(corpus: Corpus) -> dict[str, Any]:
    return {
        "name": corpus.name,
        "identity": corpus.identity,
        "source_language": corpus.source_language,
        "target_language": corpus.target_language,
    }


@contextmanager
def begun(run: Run) -> Iterator[Path]:
    """Makes the run folder and yields where this worker's tokenised text goes; a request that proves wrong leaves
    nothing behind."""
    if not run.is_chief:
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder)
        return
    existed = run.folder.path.exists()
    try:
        if run.settings.overwrite and run.folder.is_run():
            _remove_run(run.folder)
        run.folder.path.mkdir(parents=True, exist_ok=True)
        write_config(run.folder, run.config)
        yield run.folder.cache
    except RequestError:
        if not run.is_resumed:
            _remove_run(run.folder)
            if not existed:
                shutil.rmtree(run.folder.path, ignore_errors=True)
        raise


def _remove_run(folder: RunFolder) -> None:
    for path in (folder.checkpoints, folder.cache, folder.tensorboard):
        shutil.rmtree(path, ignore_errors=True)
    tokenizers = {*folder.tokenizers(False), *folder.tokenizers(True)}
    pictures = {folder.curves, folder.samples, folder.metrics, folder.valid_source, folder.valid_target}
    for path in {folder.model, *tokenizers, *pictures, folder.config}:
        path.unlink(missing_ok=True)


def prepare_text(run: Run, cache: Path, num_replicas: int) -> Text:
    """Learns the vocabulary, tokenises the corpus once, and plans its batches.

    Raises:
        RequestError: the text cannot support the vocabulary, or nothing is left of it after cleaning.
    """
    from keras_transformer.text.batches import BatchPlan

    settings = run.settings
    tokenizers = _tokenizers(run)
    _record_vocabularies(run, tokenizers)
    valid_pairs = list(islice(run.corpus.valid(), MAX_VALIDATION_PAIRS))
    if run.is_chief:
        for path, lines in zip(
            (run.folder.valid_source, run.folder.valid_target), zip(*valid_pairs, strict=True), strict=True
        ):
            write_text(path, "".join(f"{line}\n" for line in lines))
    with _naming(settings, validation=True):
        valid = _tokenized(cache / "validation", iter(valid_pairs), tokenizers, settings)
    with _naming(settings):
        train = _tokenized(cache / "train", run.corpus.train(), tokenizers, settings, keep_text=settings.sampling > 0)
    say(f"{run.corpus.name}: {train.report}")
    plan = BatchPlan(
        train, settings.token_budget, settings.seed, num_replicas, settings.accumulate, settings.static_shapes,
        sampling=settings.sampling,
    )  # fmt: skip
    valid_plan = BatchPlan(valid, settings.token_budget, num_replicas=num_replicas, shuffle=False)
    return Text(*tokenizers, plan, valid_plan, valid_pairs)


@contextmanager
def _naming(settings: Settings, validation: bool = False) -> Iterator[None]:
    """Puts the names of the training files, or of the validation files, before what is wrong with them."""
    try:
        yield
    except RequestError as error:
        files = f"{settings.source}, {settings.target}" if settings.source else settings.dataset
        if validation:
            named = settings.valid_source and f"{settings.valid_source}, {settings.valid_target}"
            files = named or f"{files}, what is held out for validation"
        raise RequestError(f"{files}: {error}") from error


def _tokenizers(run: Run) -> tuple[Tokenizer, Tokenizer]:
    settings, folder = run.settings, run.folder
    paths = folder.tokenizers(settings.separate_vocabularies)
    if run.is_resumed and all(path.is_file() for path in paths):
        return Tokenizer.load(paths[0]), Tokenizer.load(paths[1])
    if settings.init_from:
        theirs = RunFolder(settings.init_from).tokenizers(settings.separate_vocabularies)
        tokenizers = Tokenizer.load(theirs[0]), Tokenizer.load(theirs[1])
    elif settings.tokenizer:
        tokenizers = (Tokenizer.load(settings.tokenizer),) * 2
    else:
        with _naming(settings):
            tokenizers = _learned_tokenizers(run)
    if run.is_chief:
        for path, tokenizer in zip(paths, tokenizers, strict=True):
            tokenizer.save(path)
    return tokenizers


def _record_vocabularies(run: Run, tokenizers: tuple[Tokenizer, Tokenizer]) -> None:
    """Has the configuration say the sizes of the vocabularies, which may be smaller than the setting, and how many
    parameters the model has."""
    source, target = (tokenizer.vocabulary_size for tokenizer in tokenizers)
    sizes = {
        "vocabulary_size": target,
        "source_vocabulary_size": source if run.settings.separate_vocabularies else None,
    }
    run.config["model"] |= sizes
    run.config["parameters"] = count_parameters(run.config["model"])
    if run.is_chief:
        write_config(run.folder, run.config)


def _learned_tokenizers(run: Run) -> tuple[Tokenizer, Tokenizer]:
    settings = run.settings

    def learn(sides: slice, size: int = settings.vocabulary_size) -> Tokenizer:
        lines = (line for pair in run.corpus.train() for line in pair[sides])
        try:
            return Tokenizer.train(lines, size, settings.vocabulary_type, settings.seed)
        except VocabularyTooLarge as error:
            if not run.lowers_vocabulary or error.most >= size:
                raise
            say(f"the training text supports no vocabulary of {size:,} pieces: taking {error.most:,}")
            return learn(sides, error.most)

    if settings.separate_vocabularies:
        return learn(slice(0, 1)), learn(slice(1, 2))
    return (learn(slice(0, 2)),) * 2


def _tokenized(
    folder: Path, pairs: Iterator, tokenizers: tuple[Tokenizer, Tokenizer], settings: Settings, keep_text: bool = False
) -> Any:
    from keras_transformer.text.batches import TokenizedCorpus

    try:
        return TokenizedCorpus.open(folder)
    except (RequestError, FileNotFoundError):
        return TokenizedCorpus.build(
            folder,
            pairs,
            *tokenizers,
            max_length=settings.max_length,
            keep_text=keep_text,
            num_threads=settings.threads or 1,
        )


def compiled_model(run: Run) -> Any:
    """The model, compiled; under a strategy's scope it is made for its replicas."""
    from keras_transformer.training.losses import SmoothedCrossEntropy
    from keras_transformer.training.metrics import Perplexity, TokenAccuracy
    from keras_transformer.training.replicas import Adam
    from keras_transformer.training.schedules import InverseSquareRootDecay

    settings = run.settings
    dtype = f"mixed_{settings.mixed_precision}" if settings.mixed_precision else "float32"
    model = make_model(run.config["model"], dtype)
    if settings.init_from and not run.is_resumed:
        for mine, theirs in zip(
            model.trainable_variables, load_model(settings.init_from).trainable_variables, strict=True
        ):
            mine.assign(theirs)
    model.micro_batches = settings.accumulate
    model.metrics_every = METRICS_EVERY
    schedule = InverseSquareRootDecay(settings.hidden_dim, settings.warmup_steps, settings.learning_rate_factor)
    ema = {"use_ema": True, "ema_momentum": settings.ema} if settings.ema else {}
    model.compile(
        optimizer=Adam(schedule, global_clipnorm=settings.clip_norm, **ema),
        loss=SmoothedCrossEntropy(settings.label_smoothing),
        weighted_metrics=[TokenAccuracy(), Perplexity()],
        jit_compile=settings.xla,
    )
    model.build_for_training()
    return model


def fit(run: Run, text: Text, model: Any, strategy: Any) -> None:
    """Trains to the last step through `model.fit`, from the newest whole checkpoint if the run is resumed, and writes
    `model.keras`.

    Raises:
        Stopped: a signal came; the run is saved.
        JobError: the loss is no number any more, or a file could not be written.
    """
    from keras_transformer.training.callbacks import Progress
    from keras_transformer.training.checkpoints import Checkpoints

    checkpoints = Checkpoints(run.folder.checkpoints, run.settings.average_last, run.settings.checkpoint_every)
    stored = checkpoints.restore(model, Progress().as_dict()) if run.is_resumed else None
    progress = Progress(**stored) if stored else Progress()
    if stored:
        _check_place(text.plan, progress)
        say(f"resuming at step {progress.step}")
    elif run.is_resumed:
        say("no checkpoint yet: starting again")
    callbacks = _callbacks(run, text, model, progress, checkpoints)
    patience = run.settings.patience
    # So it is at the start if the run had stopped, and was killed before model.keras was written.
    stopped_early = bool(patience) and progress.validations_without_better >= patience
    total = progress.step if stopped_early else run.settings.steps
    for steps, epochs in _rounds(progress.step, total, run.settings.checkpoint_every):
        first = progress.step // run.settings.checkpoint_every
        with _feeding_errors():
            model.fit(
                _batches(text.plan, strategy, progress.place),
                validation_data=_valid_batches(text.valid_plan, strategy),
                validation_steps=text.valid_plan.num_batches(0),
                initial_epoch=first, epochs=first + epochs, steps_per_epoch=steps, callbacks=callbacks, verbose=0,
                shuffle=False,
            )  # fmt: skip
        if stopped_early := model.stop_training:
            break
    if stopped_early:
        say(f"no better BLEU than {progress.best_bleu:.2f}, of step {progress.best_step}: stopped early")
    if run.is_chief:
        write_result(run, text, model, progress, checkpoints)


def _check_place(plan: Any, progress: Any) -> None:
    if progress.epoch < 0 or not 0 <= progress.batch < plan.num_batches(progress.epoch):
        raise JobError(
            f"the newest checkpoint goes on at batch {progress.batch} of epoch {progress.epoch}, which this run's text "
            "does not have: start again with --overwrite"
        )


@contextmanager
def _feeding_errors() -> Iterator[None]:
    """What the feeding thread raised reaches `fit` inside an operation's error: raised again as what it was.

    A record of the run that cannot be written ends it too, the checkpoints intact.
    """
    import tensorflow as tf

    try:
        yield
    except tf.errors.OpError as error:
        if told := re.search(
            r"^(?:keras_transformer\.errors\.\w+|\w*OSError|MemoryError): (.*)$", error.message, re.MULTILINE
        ):
            raise JobError(f"the batches stopped coming: {told[1]}; the checkpoints are intact") from error
        raise
    except OSError as error:
        file = error.filename or "the run's files"
        raise JobError(f"cannot write {file} ({error.strerror or error}); the checkpoints are intact") from error


def _rounds(step: int, steps: int, every: int) -> Iterator[tuple[int, int]]:
    """(steps a round, rounds) of each `fit`: what is left of a round begun, whole rounds, and a shorter last one."""
    if step % every and step < steps:
        begun = min(every - step % every, steps - step)
        yield begun, 1
        step += begun
    if whole := (steps - step) // every:
        yield every, whole
    if rest := (steps - step) % every:
        yield rest, 1


def _batches(plan: Any, strategy: Any, place: Any) -> Any:
    from keras_transformer.text.batches import dataset
    from keras_transformer.training.replicas import local_replicas

    indices, count = local_replicas(strategy)
    return strategy.distribute_datasets_from_function(lambda _: dataset(plan, place, indices, count))


def _valid_batches(plan: Any, strategy: Any) -> Any:
    from keras_transformer.text.batches import one_epoch
    from keras_transformer.training.replicas import local_replicas

    indices, count = local_replicas(strategy)
    return strategy.distribute_datasets_from_function(lambda _: one_epoch(plan, indices, count))


def _callbacks(run: Run, text: Text, model: Any, progress: Any, checkpoints: Any) -> list[Any]:
    """In the order in which they act: follow, check, measure, record, save, show."""
    import numpy as np

    from keras_transformer.training import callbacks as c
    from keras_transformer.training.replicas import num_workers

    settings = run.settings
    stop_on_nan = c.StopOnNaN(progress)
    follow = [c.Follow(progress, text.plan), stop_on_nan]
    within_round = progress.step % settings.checkpoint_every and num_workers() == 1
    counted = [np.asarray(variable) for variable in model.metrics_variables] if within_round else []
    records, save = c.Records(run.folder, progress), c.Save(checkpoints, progress)
    bleu = []
    if settings.bleu_sentences and (run.is_chief or settings.patience):
        show = records.show if run.is_chief else None
        sides = _bleu_sides(run, text)
        bleu = [c.Bleu(progress, _translate_with(run, text, model), *sides, settings.patience, show)]
    if not run.is_chief:
        return [*follow, *bleu]
    interrupt = c.Interrupt(stop_on_nan.check, save.save, f"python train.py --resume --out {run.folder.path}")
    return [
        *follow,
        c.RestoreMetrics(counted),
        *bleu,
        records,
        save,
        interrupt,
        c.ProgressLine(progress, settings.steps),
    ]


def _bleu_sides(run: Run, text: Text) -> tuple[Sequence[str], Sequence[str]]:
    """The validation sentences that BLEU is counted over, and their references."""
    sources, references = zip(*text.valid_pairs[: run.settings.bleu_sentences], strict=True)
    return sources, references


def _translate_with(run: Run, text: Text, model: Any) -> Any:
    """Greedy translation with the present weights (their moving average, with --ema), in float32, outside of any
    strategy."""
    from keras_transformer.decoding.translator import Translator
    from keras_transformer.training.checkpoints import set_weights

    twin = make_model(run.config["model"])
    translator = Translator(twin, text.source_tokenizer, text.target_tokenizer)

    def translate(lines: Sequence[str]) -> list[str]:
        set_weights(twin, present_weights(model))
        return translator.translate(lines, num_beams=1)

    return translate


def present_weights(model: Any) -> list[Any]:
    """The weights to translate with: their moving average where the optimiser keeps one."""
    import numpy as np

    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    variables = optimizer._model_variables_moving_average if optimizer.use_ema else model.trainable_variables
    return [np.asarray(variable) for variable in variables]


def write_result(run: Run, text: Text, model: Any, progress: Any, checkpoints: Any) -> None:
    """Writes `model.keras`: the moving average, or the mean of the last checkpoints (with early stopping, of those up
    to the best); and says its own BLEU, counted as while training.

    Raises:
        JobError: it could not be written; the checkpoints are intact.
    """
    from keras_transformer.bleu import bleu as count_bleu
    from keras_transformer.decoding.translator import Translator
    from keras_transformer.training.checkpoints import set_weights, write_model

    settings = run.settings
    twin = make_model(run.config["model"])
    end = progress.best_step if settings.patience and progress.best_step else None
    steps = checkpoints.to_average(end)
    origin: dict[str, Any] = {"at_step": progress.step, "asked_steps": settings.steps}
    if settings.ema:
        weights, origin = present_weights(model), {**origin, "kind": "moving average"}
    else:
        weights, origin = checkpoints.mean(steps, twin), {**origin, "kind": "mean", "steps": steps}
    set_weights(twin, weights)
    if settings.bleu_sentences:
        sources, references = _bleu_sides(run, text)
        translator = Translator(twin, text.source_tokenizer, text.target_tokenizer)
        origin["val_bleu"] = count_bleu(translator.translate(sources, num_beams=1), references)
    try:
        write_model(run.folder, run.config, twin, origin)
    except OSError as error:
        raise JobError(
            f"cannot write {run.folder.model} ({error.strerror or error}); the checkpoints are intact"
        ) from error
    bleu = f" · validation · bleu {origin['val_bleu']:.2f}" if "val_bleu" in origin else ""
    say(f"wrote {run.folder.model}{bleu}")
