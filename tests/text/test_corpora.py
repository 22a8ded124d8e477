"""Parallel text: from files, numbers in words, Multi30k, WMT14 and pronouns; what is held out, and what is refused."""

import gzip
import hashlib
import os
import random
import re
import sys
import types
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from keras_transformer.core.errors import JobError, RequestError
from keras_transformer.core.task_registry import TASKS
from keras_transformer.tasks.classification.corpus import labelled_from_file
from keras_transformer.tasks.masked_tokens.training import rows_of
from keras_transformer.text import corpora, named_corpora
from keras_transformer.text import lines as reading
from keras_transformer.text.corpora import corpus_from_files, load_corpus
from keras_transformer.text.lines import read_lines
from keras_transformer.text.named_corpora import known_examples, multi30k_file, pronoun_examples
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.training.task import training_of


def write(path: Path, lines: list[str]) -> Path:
    data = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def corpus_of(folder: Path, pairs: list[corpora.Pair], *more: list[corpora.Pair], seed: int | None = 0) -> Any:
    """The corpus of files with these pairs, and with these for validation."""
    sides = [side for some in (pairs, *more) for side in zip(*some, strict=True)]
    files = (write(folder / f"side {place}", list(lines)) for place, lines in enumerate(sides))
    return corpus_from_files(*files, seed=seed)


@pytest.mark.parametrize("name", ["text.en", "text.en.gz"])
def test_a_line_ends_at_a_line_feed_only(tmp_path, name) -> None:
    data = "\ufeffa\u2028b\x0bc\x85d\re\r\n\ufefff\r\r\n\ndrei ß 你好\nlast".encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    expected = ["a\u2028b\x0bc\x85d\re", "\ufefff\r", "", "drei ß 你好", "last"]
    assert list(read_lines(tmp_path / name)) == expected


def test_files_that_cannot_be_read_are_named(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(reading, "MAX_LINE_BYTES", 8000)
    good = write(tmp_path / "good", ["a", "b"])
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name, content, message in (
        ("missing", None, "no such file: .*missing; check the path"),
        ("folder", None, "cannot read .*folder .*expected a text file, plain or .gz"),
        ("pipe", None, "pipe is a pipe or a device, .*: give a file"),
        ("cut.gz", gzip.compress(b"a line\n" * 1000)[:-20], r"cut\.gz: broken gzip"),
        ("empty", b"", "empty is empty; expected a sentence a line"),
        ("long.gz", gzip.compress(b"a" * 9000), r"long\.gz, line 1: longer than 8,000 bytes"),
        ("latin1.de", b"eins\nzwei\nf\xfcnf\n", r"latin1\.de, line 3: not UTF-8; convert"),
    ):
        if content is not None:
            (tmp_path / name).write_bytes(content)
        for files in ((tmp_path / name, good), (good, tmp_path / name), (good, good, good, tmp_path / name)):
            with pytest.raises(RequestError, match=message) as error:
                corpus_from_files(*files)
            assert "\n" not in str(error.value)


@pytest.mark.parametrize("encoding", ["UTF-16LE", "UTF-16BE", "UTF-32LE", "UTF-32BE", "UTF-16", "UTF-32"])
def test_a_line_with_nul_is_refused_with_the_encoding_that_it_looks_like(tmp_path, encoding) -> None:
    told = f"text, line [12]: (.* received NUL.* -f {encoding if encoding[6:] else encoding + 'LE'} -t UTF-8|not UTF-8)"
    for text in ["two dogs\nin the sea\n", "две собаки\nи кошка\n", "два\nодин\n", "两只狗\n在海里\n", "é\n"]:
        (tmp_path / "text").write_bytes(text.encode(encoding))
        with pytest.raises(RequestError, match=told):
            list(read_lines(tmp_path / "text"))
    (tmp_path / "text").write_bytes(b"a line\nthis is one of thirty letters\0\n")
    with pytest.raises(RequestError, match="text, line 2: .* received NUL characters: delete them"):
        list(read_lines(tmp_path / "text"))


def test_no_task_learns_the_white_space_around_a_line(tmp_path) -> None:
    path = write(tmp_path / "text", [f" \u00a0{'ab'[n % 2]}\t baba {n} \u00a0" for n in range(30)])
    files = corpora.with_more(corpus_from_files(path, path), path, path)
    for corpus in (files, files.more, labelled_from_file(path)):
        assert corpus and all(pair == tuple(map(str.strip, pair)) for pair in chain(corpus.train(), corpus.valid()))
    tokenizer = Tokenizer.train(["ba\u00a0ba"] * 9, 8)  # which keeps the no-break space
    spaced, plain = (rows_of(lines, tokenizer, 9) for lines in (["\u00a0baba \u00a0"], ["baba"]))
    assert spaced.ids(0).tolist() == plain.ids(0).tolist()


def test_files_that_do_not_fit_are_refused(tmp_path) -> None:
    long, one = write(tmp_path / "a.en", ["x"] * 1200), write(tmp_path / "one", ["only"])
    short, same = write(tmp_path / "a.de.gz", ["x"] * 1199), write(tmp_path / "same", ["the same"] * 30)
    for files, message in (
        ((long, short), r"a\.en has 1,200 lines and .*a\.de\.gz has 1,199: .* align"),
        ((one, one, one), "give both or none"),
        ((one, one), "one line, which cannot be trained on and held out"),
        ((same, same), "same: all 30 pairs are equal, so none can be held out .* --valid-source"),
    ):
        with pytest.raises(RequestError, match=message):
            corpus_from_files(*files)


def test_given_validation_files_are_used_or_lines_are_held_out(tmp_path, pairs) -> None:
    pairs, valid = pairs[:200], pairs[200:205]
    corpus = corpus_of(tmp_path, pairs, valid)
    assert list(corpus.train()) == list(corpus.train()) == pairs and list(corpus.valid()) == valid
    assert corpus.recipe == {}
    corpus = corpus_of(tmp_path, pairs, seed=None)
    assert list(corpus.valid()) == pairs[-10:] and list(corpus.train()) == pairs[:-10]
    pairs[3] = pairs[7] = pairs[-1]  # three times, which would be twelve lines in all
    corpus = corpus_of(tmp_path, pairs, seed=None)
    assert list(corpus.valid()) == pairs[-10:-1]
    assert list(corpus.numbered()) == [(n, pair) for n, pair in enumerate(pairs, 1) if pair not in pairs[-10:-1]]


@pytest.mark.parametrize("kind_of", [lambda n: n % 5, lambda n: n % 10, lambda n: n // 200], ids=["5", "10", "sorted"])
@pytest.mark.parametrize("task", [name for name in TASKS if name != "next-item"])
def test_every_task_holds_out_a_drawn_share(tmp_path, task, kind_of) -> None:
    """Lines of several kinds may stand in turns or one kind after the other: each kind has its share."""
    kinds = [f"kind {kind_of(n)}" for n in range(1_000)]
    text = str(write(tmp_path / "text", [f"{kind}\tis that of {n}" for n, kind in enumerate(kinds)]))
    for n, kind in enumerate(kinds if task == "images" else ()):
        (tmp_path / "images" / kind).mkdir(parents=True, exist_ok=True)
        (tmp_path / "images" / kind / f"{n}.png").write_text(f"{n}")
    files = {"translation": {"source": text, "target": text}, "images": {"images": str(tmp_path / "images")}}
    share, known = 0.05 if task == "translation" else 0.1, list[Any]()
    for seed in (1, 1, 2, *([] if task in ("images", "classification") else [None])):
        corpus = training_of(task).corpus(TASKS[task].settings(**files.get(task, {"text": text}), seed=seed))
        train, valid = ([str(one) for one in part()] for part in (corpus.train, corpus.valid))
        assert len({*train, *valid}) == len(train + valid) == 1_000 and 880 <= len(train) <= 950
        numbers = [int(re.findall(r"that of (\d+)", one)[0]) for one in train if task != "images"]
        assert numbers == sorted(numbers), "in the order of the file"
        counts = Counter(re.findall(r"kind \d+", "".join(sorted({*valid}))))
        if seed is not None:
            assert all(counts[kind] >= share * count / 4 for kind, count in Counter(kinds).items()), counts
        known.append((corpus.identity, valid))
    assert known[0] == known[1] and len({identity for identity, _ in known}) == len(known) - 1, "a resumed run sees it"


@pytest.mark.parametrize("num_different", [2, 30, 3_000])
def test_equal_pairs_are_all_held_out_or_all_trained_on(tmp_path, num_different) -> None:
    """As in text of phrases, some pairs are frequent; nothing may vanish from training and validation both."""
    draw = random.Random(num_different)
    weights = [1 / rank for rank in range(1, num_different + 1)]
    numbers = draw.choices(range(num_different), weights, k=4_000)
    pairs = [(f"phrase {number}", f"Satz {number}") for number in numbers]
    corpus = corpus_of(tmp_path, pairs)
    train, valid = list(corpus.train()), list(corpus.valid())
    assert train and valid and not set(train) & set(valid)
    assert sorted(train + valid) == sorted(pairs) and corpus.num_held_out == len(valid)
    assert len(valid) <= 200 or len(set(valid)) == 1, "one line in twenty, unless the rarest pair alone is more"
    assert list(corpus_of(tmp_path, pairs).valid()) == valid


def test_the_identity_follows_the_text(tmp_path) -> None:
    sources = [write(tmp_path / name, ["a", "b"]) for name in ("x", "x.gz")]
    targets = [write(tmp_path / name, ["c", "d"]) for name in ("y", "y.gz")]
    corpus = corpus_from_files(sources[0], targets[0])
    assert corpus.identity == corpus_from_files(sources[1], targets[1]).identity
    assert corpus.identity != corpus_from_files(sources[0], write(tmp_path / "z", ["c", "e"])).identity


def test_an_unknown_dataset_or_language_is_refused() -> None:
    known = "one of numbers:<src>-<tgt>, pronouns:<src>-<tgt>, multi30k:<src>-<tgt>, .*received: '"
    for name, message in {
        **dict.fromkeys(("", "wmt", "numbers:en", "numbers:en-", "numbers:en-en", "multi30k:-de"), known),
        "numbers:xx-de": "no numbers in 'xx'; expected one of am, ar, .*, vi, or .* pt_BR",
        "numbers:am-en": r"fails to spell \d+ in 'am' .*choose another language",
    }.items():  # fmt: skip
        with pytest.raises(RequestError, match=message):
            load_corpus(name)
    with pytest.raises(RequestError, match="leave out --data-dir; received: /somewhere"):
        load_corpus("numbers:en-de", "/somewhere")


def test_held_out_numbers_are_apart(monkeypatch) -> None:
    number_pairs = named_corpora.number_pairs.__wrapped__
    with monkeypatch.context() as patch:
        patch.setattr(named_corpora, "spelled", lambda numbers, language: map(str, numbers))
        train, valid = ([int(source) for source, _ in part] for part in number_pairs("a", "b"))
        assert len(set(valid)) == len(valid) == 2_000 and 20_000 <= len(set(train)) == len(train) <= 30_000
        assert not set(train) & set(valid) and set(range(1_000)) <= set(train) | set(valid)
        patch.setattr(named_corpora, "spelled", lambda numbers, language: (str(n // 3) for n in numbers))
        pairs, held_out = number_pairs("a", "b")
        assert pairs and not set(chain(*pairs)) & set(chain(*held_out)), "what is spelled alike is apart too"
    for name, value in {"LIMIT": 20_000, "SAMPLED": 400, "HELD_OUT": 100, "ALL_BELOW": 50}.items():
        monkeypatch.setattr(named_corpora, name, value)
    monkeypatch.setattr(corpora, "number_pairs", number_pairs)
    corpus, other = load_corpus("numbers:en-de"), load_corpus("numbers:pt_BR-ja")
    assert ("seventeen", "siebzehn") in [*corpus.train(), *corpus.valid()]
    assert list(corpus.train()) == list(corpus.train()) and len(list(corpus.valid())) == 100
    assert [other.source_language, other.target_language] == ["pt_BR", "ja"]
    assert load_corpus().name == corpus.name and corpus.identity != other.identity


@pytest.fixture
def stand_in(monkeypatch) -> dict[str, bytes]:
    """Texts that take the place of Multi30k's, with their hashes."""
    texts = {name: f"{name} 1\n{name} 2\n".encode() for name in named_corpora.MULTI30K_SHA256}
    hashes = {name: hashlib.sha256(text).hexdigest() for name, text in texts.items()}
    monkeypatch.setattr(named_corpora, "MULTI30K_SHA256", hashes)
    return texts


def store(folder: Path, texts: dict[str, bytes], compressed: bool = True) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        path = folder / (f"{name}.gz" if compressed else name)
        path.write_bytes(gzip.compress(text, compresslevel=1) if compressed else text)
    return folder


def test_multi30k_from_a_folder_which_is_checked(stand_in, tmp_path, monkeypatch) -> None:
    with pytest.raises(RequestError, match=r"holds neither train\.en\.gz nor train\.en: check --data-dir"):
        load_corpus("multi30k:en-de", tmp_path)
    for compressed in (False, True):
        corpus = load_corpus("multi30k:fr-de", store(tmp_path / f"{compressed}", stand_in, compressed))
        assert list(corpus.train()) == [("train.fr 1", "train.de 1"), ("train.fr 2", "train.de 2")]
        assert list(corpus.valid()) == [("val.fr 1", "val.de 1"), ("val.fr 2", "val.de 2")]
    assert set(corpus.recipe) >= {"num_layers", "vocabulary_size", "token_budget"}
    for damaged in (gzip.compress(b"another text\n"), b"no gzip", gzip.compress(b"cut" * 1000)[:-9]):
        (tmp_path / "True" / "val.de.gz").write_bytes(damaged)
        with pytest.raises(RequestError, match=r"val\.de\.gz is not Multi30k's val\.de .*SHA-256.* copy it again"):
            load_corpus("multi30k:en-de", tmp_path / "True")
    with pytest.raises(RequestError, match=r"multi30k has no train\.\.\./de; expected one of train\.en, "):
        load_corpus("multi30k:en-../de")
    monkeypatch.setattr(named_corpora, "MAX_TEXT_BYTES", 10)  # a text may unpack without end
    with pytest.raises(RequestError, match="is not Multi30k's"):
        load_corpus("multi30k:en-de", store(tmp_path, stand_in))


def test_multi30k_is_fetched_once_and_whole_or_not_at_all(stand_in, tmp_path, monkeypatch) -> None:
    public, cache = store(tmp_path / "public", stand_in), tmp_path / "keras_transformer" / "multi30k"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def refused(message: str, url: str = public.as_uri()) -> None:
        with pytest.raises(JobError, match=rf"{url}/val\.de\.gz {message}.*pass its folder with --data-dir") as error:
            multi30k_file("val", "de", base_url=url)
        assert "\n" not in str(error.value) and not list(cache.glob("*"))

    refused(r"\(<urlopen error", url="http://127.0.0.1:9/raw")
    with monkeypatch.context() as patch:
        patch.setattr(named_corpora, "MAX_DOWNLOAD_BYTES", 10)
        refused(r"\(over 10 bytes")
    for content in (gzip.compress(b"another text\n"), b"cut"):
        (public / "val.de.gz").write_bytes(content)
        refused("sent another text")
        store(public, stand_in)
    for _ in range(2):
        path = multi30k_file("val", "de", base_url=public.as_uri())
        assert path == cache / "val.de.gz" and list(read_lines(path)) == ["val.de 1", "val.de 2"]
        path.write_bytes(path.read_bytes()[:-5])  # a damaged copy is fetched again
    store(cache, stand_in)
    assert len(list(load_corpus("multi30k:en-de").train())) == 2, "nothing is fetched"


def test_wmt14_in_both_directions_and_what_cannot_be_had(tmp_path, monkeypatch) -> None:
    """Of tensorflow_datasets one configuration serves both directions."""

    class Split(list):
        cardinality = list.__len__

    def load(name, split, data_dir, shuffle_files, with_info):
        assert not shuffle_files and with_info
        if name != "wmt14_translate/de-en":
            raise ValueError(f"no {name}\nand more lines")
        rows = [Split([{"en": f"{part} one\ntwo".encode(), "de": f"{part} eins zwei".encode()}]) for part in split]
        return rows, types.SimpleNamespace(full_name=f"{name}/1.0.0")

    monkeypatch.setitem(sys.modules, "tensorflow_datasets", types.SimpleNamespace(load=load, as_numpy=iter))
    forth, back = load_corpus("wmt14:en-de", tmp_path), load_corpus("wmt14:de-en")
    assert list(forth.train()) == list(forth.train()) == [("train one two", "train eins zwei")]
    assert list(forth.valid()) == [("validation one two", "validation eins zwei")]
    assert list(back.train()) == [("train eins zwei", "train one two")]
    assert forth.identity != back.identity and forth.num_pairs == 1
    with pytest.raises(JobError, match=r"could not prepare wmt14_translate/fr-en \(no .*fr-en\)"):
        load_corpus("wmt14:en-fr")
    with pytest.raises(RequestError, match="English .* with cs, de, fr, hi, ru; received: de-fr"):
        load_corpus("wmt14:de-fr")
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    with pytest.raises(RequestError, match=r"wmt14 needs the package tensorflow_datasets, .*\[wmt\]'"):
        load_corpus("wmt14:en-de")


SENTENCE = re.compile(r"(?:.* )?[Tt]he (\w+) didn't \w+ the (\w+) because it was too (\w+)\.")


@pytest.mark.parametrize("language", ["de", "fr"])
def test_no_pair_of_nouns_is_in_two_parts_and_a_sentence_means_both_equally_often(language):
    assert known_examples(language)[0].source == "The animal didn't cross the street because it was too tired."
    examples = pronoun_examples("en", language)
    assert [len(part) for part in examples] == [24_000, 1_000, 1_000]
    parts = [{frozenset((one.refers_to, one.other)) for one in part} for part in examples]
    assert sum(map(len, parts)) == len(set().union(*parts)) > 1_500
    assert set().union(*parts[0]) == set().union(*set().union(*parts)), "the nouns themselves are all trained on"
    for part in examples:
        assert len({one.source for one in part}) == len(part)
        nouns = [match.groups() for one in part if (match := SENTENCE.fullmatch(one.source))]
        assert [{one.refers_to, one.other} | {one.adjective} for one in part] == [set(three) for three in nouns]
        assert sum(one.refers_to == animal for one, (animal, *_) in zip(part, nouns, strict=True)) == len(part) / 2


def test_a_pronoun_has_the_gender_of_its_noun():
    pronoun_of = {"der": "er", "den": "er", "die": "sie", "das": "es"}
    for one in pronoun_examples("en", "de")[2]:
        article = re.search(rf"\b(\w+) {one.noun}\b", one.target)
        assert article and pronoun_of[article[1].lower()] == one.pronoun and f"weil {one.pronoun} zu " in one.target


def test_the_corpus_is_made_of_the_training_and_the_validation_sentences():
    corpus = load_corpus("pronouns:en-de")
    train, valid, test = pronoun_examples("en", "de")
    assert list(corpus.train()) == [(one.source, one.target) for one in train]
    assert list(corpus.valid()) == [(one.source, one.target) for one in valid]
    assert (corpus.source_language, corpus.target_language) == ("en", "de")
    # A run that is resumed asks for the same text, in every version.
    assert corpus.identity[:16] == "06e5215e8ae0b17d"
    for languages in ("de-en", "en-es", "fr-de"):
        with pytest.raises(RequestError, match=f"from English, en, into de or fr; received: {languages}"):
            load_corpus(f"pronouns:{languages}")
