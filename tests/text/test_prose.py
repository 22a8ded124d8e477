"""Text of one language, its vocabulary, and its windows."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_transformer.core.errors import RequestError
from keras_transformer.tasks.language_modelling.batches import WindowPlan, tokenized_text
from keras_transformer.tasks.language_modelling.corpus import divided, named_text, text_from_file
from keras_transformer.text.lines import beginning
from keras_transformer.text.tokenizer import PAD, START, Tokenizer
from tests.text.plans import batches_of, real

TEXT = "def f(x):\n    return  x + 1\n\n\tä   <x/> a sea of text \n" * 3
TEXT += "".join(f"  value_{n} = other(word{n * 37 % 100})  # {n * n}\n" for n in range(80))


@pytest.fixture(scope="module", params=["char", "unigram", "bpe"])
def tokenizer(request):
    return Tokenizer.train(TEXT.split("\n"), 70, request.param, keeps_text=True)


@settings(max_examples=40)
@given(text=st.text(alphabet="def f(x):return+1\n\tä<>/s ", max_size=30))
def test_text_comes_back_as_it_was(tokenizer, text):
    ids = tokenizer.encode_text(text)
    assert tokenizer.decode_text(ids) == text and not {PAD, START} & set(ids)
    assert tokenizer.decode_text([START, *ids, PAD]) == text


def test_what_text_cannot_hold_is_replaced_and_a_text_is_tokenised_once(tokenizer, tmp_path):
    assert tokenizer.decode_text(tokenizer.encode_text("f\0f")) == "f f"
    assert tokenizer.encode_text("f\ud800f") == tokenizer.encode_text("f\ufffdf")
    assert tokenizer.has_line_breaks and not Tokenizer.train(TEXT.split("\n"), 60).has_line_breaks
    if tokenizer.model_type == "char":
        assert len(tokenizer.encode_text(TEXT)) == len(TEXT)
    ids = tokenized_text(tmp_path / "text.ids", TEXT.split("\n")[:-1], tokenizer)
    assert ids.dtype == "uint16" and tokenizer.decode_text(ids) == TEXT
    np.testing.assert_array_equal(tokenized_text(tmp_path / "text.ids", iter(()), tokenizer), ids)
    (tmp_path / "text.ids").write_bytes(b"odd")
    with pytest.raises(RequestError, match="text.ids is damaged: 3 bytes are no numbers of 2: delete it$"):
        tokenized_text(tmp_path / "text.ids", iter(()), tokenizer)


def test_whole_lines_are_counted():
    expected = ["", "one\n", "one\n", "one\n\n", "one\n\nthree\n", "one\n\nthree\nfour\n"]
    assert [beginning(iter(["one", "", "three", "four"]), most) for most in (0, 1, 4, 5, 6, 99)] == expected
    for sizes, count in (([10] * 10, 9), ([1], 0), ([95, 5], 0), ([5, 95], 1), ([], 0)):
        lines = ["x" * (size - 1) for size in sizes]
        train, valid = divided(lines.copy, None)
        assert (list(train()), list(valid())) == (lines[:count], lines[count:])
        train, valid = divided(lines.copy, 3)
        assert sorted([*train(), *valid()]) == sorted(lines) and len(list(valid())) == (len(lines) > 1)


def test_texts_that_cannot_be_read_are_refused_and_the_named_one_is_always_the_same(tmp_path):
    for content, message in ((b"\n\n", "is empty; expected text"), (b"one line\n", "too few lines")):
        (tmp_path / "text").write_bytes(content)
        with pytest.raises(RequestError, match=message):
            text_from_file(tmp_path / "text")
    python = named_text("pydoc-topics")
    assert len("\n".join([*python.train(), *python.valid()])) > 300_000
    assert python.identity == named_text("pydoc-topics").identity


WINDOW_PLANS = st.tuples(st.integers(1, 60), st.integers(1, 9), st.integers(1, 3), st.booleans())


@settings(max_examples=100)
@given(plan=WINDOW_PLANS, epoch=st.integers(0, 3))
def test_windows_hold_the_text_in_order(plan, epoch):
    num_tokens, width, num_replicas, shuffle = plan
    ids = np.arange(4, 4 + num_tokens)
    if shuffle and num_tokens < width:
        with pytest.raises(RequestError, match=f"a text of at least {width} tokens, the context's length"):
            WindowPlan(ids, width, 100)
        return
    seen: list[int] = []
    for batch in batches_of(WindowPlan(ids, width, 4 * width, 1, num_replicas, shuffle=shuffle), epoch):
        assert batch.inputs["ids"].shape[1] == width and batch.labels.any(axis=1).sum() <= 4
        for row, labels in zip(batch.inputs["ids"], batch.labels, strict=True):
            window = list(real(labels))
            assert [*row[: len(window)]] == [START, *window[:-1]][: len(window)] and (window or not row.any())
            assert window == [*range(window[0], window[0] + len(window))] if window else True
            seen += window
    assert len(seen) == len(set(seen)) and set(seen) <= set(ids.tolist())
    if shuffle:
        left = num_tokens - (min(seen) - 4)  # from the first window on
        assert min(seen) - 4 < width and len(seen) == left - left % width
    else:
        assert seen == ids.tolist()


def test_epochs_differ_and_are_the_same_in_every_process():
    def starts(seed, epoch):
        plan = WindowPlan(np.arange(7, 107), 7, 70, seed)
        return [row[0] for batch in batches_of(plan, epoch) for row in batch.labels]

    assert starts(1, 0) == starts(1, 0) not in (starts(1, 1), starts(2, 0))
    assert len({starts(1, epoch)[0] % 7 for epoch in range(5)}) > 1, "another place to begin"
    with pytest.raises(RequestError, match="a window of 8 tokens on each of 2 replicas and micro-batches: at least 16"):
        WindowPlan(np.arange(100), 8, 15, num_replicas=2)
