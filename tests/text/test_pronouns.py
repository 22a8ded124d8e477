"""Sentences whose pronoun says which of two nouns is meant."""

import re

import pytest

from keras_transformer.errors import RequestError
from keras_transformer.text.corpora import load_corpus
from keras_transformer.text.pronouns import known_examples, pronoun_examples

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
        assert article and pronoun_of[article[1].lower()] == one.pronoun
        assert f"weil {one.pronoun} zu " in one.target
    for one in pronoun_examples("en", "fr")[2]:
        match = re.search(r"parce qu'(ils?|elle) était trop (.*)\.$", one.target)
        assert match and match[1] == one.pronoun
        assert re.search(rf"\b(l'|la |le ){one.noun}\b", one.target, re.IGNORECASE)


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
