"""What the committed notebooks claim: what they printed when they ran as their readers run them."""

import math
import re
from pathlib import Path

import nbformat

NOTEBOOKS = Path(__file__).resolve().parent.parent / "notebooks"
NUMBER = "nine hundred and eighty-seven thousand, six hundred and five"
IN_GERMAN = "neunhundertsiebenundachtzigtausendsechshundertfünf"


def told(name: str) -> str:
    """What the cells of a notebook printed, their results, and the tables that they show."""
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    kinds = ("text/plain", "text/markdown")
    texts = ([output.get("text", ""), *(output.get("data", {}).get(kind, "") for kind in kinds)] for output in outputs)
    return "\n".join(text for some in texts for text in some)


TRAINING, EXPORTING, LOOKING, COMPARING, SWAPPING, TUNING = map(
    told,
    ["train_with_model_fit", "export_and_serve", "attention_step_by_step", "word_vectors", "the_family", "fine_tune"],
)


def test_training_lowers_every_loss_and_numbers_that_were_never_seen_are_translated():
    share, count = re.findall(r"([\d.]+)% of (\d+) [\w ,-]*exactly", TRAINING)[0]
    assert float(share) >= 95 and int(count) >= 500
    assert IN_GERMAN in TRAINING and "einundzwanzig" in TRAINING
    for name, most in (("loss", 1.0), ("val_loss", 1.0), ("val_perplexity", 1.15)):
        values = [float(value) for value in re.findall(rf"\b(?<!val_){name}: ([\d.]+)", TRAINING)]
        assert len(values) >= 5 and values[-1] < 0.5 * values[0] and values[-1] < most, name
    assert float(re.findall(r"val_accuracy: ([\d.]+)", TRAINING)[-1]) > 0.99


def test_every_runtime_translates_as_keras_does_and_the_certificate_holds():
    lines = re.findall(r"^(SavedModel|ONNX|TFLite|Keras) +(\[.*\])$", EXPORTING, re.MULTILINE)
    assert [name for name, _ in lines] == ["SavedModel", "ONNX", "TFLite", "Keras"]
    assert len({translations for _, translations in lines}) == 1
    assert "'zweiundvierzig'" in lines[0][1] and IN_GERMAN in lines[0][1]
    assert re.search(r"^exit status 0$", EXPORTING, re.MULTILINE)
    assert EXPORTING.count("exit status 0") == 2 and "exit status 1" not in EXPORTING
    rows = re.findall(r"^\| `([^`]+)` \| (\S+) \| (\d+) \| ([\d.]+)% ", EXPORTING, re.MULTILINE)
    assert len(rows) >= 20
    for name, holds, sentences, identical in rows:
        assert holds == "yes" and int(sentences) >= 200 and float(identical) >= (90 if "int8" in name else 99), name


def test_the_table_has_every_precision_and_search_and_int8_is_less_than_half():
    rows = re.findall(r"^\| (\w+) \| (float32|int8) \| (4|1) \| ([\d.]+)% \| ([\d.]+) \|", EXPORTING, re.MULTILINE)
    sizes = {(name, precision, beams): float(size) for name, precision, beams, _, size in rows}
    formats = [
        ("SavedModel", "float32"),
        *((name, kind) for name in ("ONNX", "TFLite") for kind in ("float32", "int8")),
    ]
    assert sizes.keys() == {(*one, beams) for one in formats for beams in "41"}
    assert all(float(share) >= 90 for *_, share, _ in rows)
    for name, precision, beams in sizes:
        assert precision == "float32" or sizes[name, "int8", beams] < 0.5 * sizes[name, "float32", beams]


def test_a_classifier_begins_better_with_skip_grams_vectors():
    found = re.findall(r"^(random|skip-gram|GloVe) +([\d.% ]+) mean ([\d.]+) %$", COMPARING, re.MULTILINE)
    draws = {name: [float(share) for share in shares.split("%")[:-1]] for name, shares, _ in found}
    means = {name: float(mean) for name, _, mean in found}
    assert all(more > less for more, less in zip(draws["skip-gram"], draws["random"], strict=True))
    assert (round(means["skip-gram"]), round(means["random"]), round(means["GloVe"])) == (53, 42, 44)
    assert sum(more < less for more, less in zip(draws["GloVe"], draws["random"], strict=True)) == 1


def test_scores_sinusoids_and_norms_are_as_the_text_says():
    for row in re.findall(r"^distance \d+: +\[(.*)\]$", LOOKING, re.MULTILINE):
        assert len(set(row.split(", "))) == 1
    assert float(re.findall(r"BatchNormalization +differs by ([\d.]+)", LOOKING)[0]) > 0.5
    assert float(re.findall(r"LayerNorm +differs by ([\d.]+)", LOOKING)[0]) == 0
    divided, not_divided = zip(*re.findall(r"H = +\d+: ([\d.]+) divided, ([\d.]+) not divided", LOOKING), strict=True)
    assert len(divided) == 3 and max(map(float, divided)) < 0.4
    assert float(not_divided[-1]) > 0.95
    shares = [math.exp(product / 2) / (math.exp(1.5) + 2) for product in (3, 0, 0)]
    assert f"{{'animal': {shares[0]:.2f}, 'street': {shares[1]:.2f}, 'it': {shares[2]:.2f}}}" in LOOKING
    assert LOOKING.count("True") == 3 and "False" not in LOOKING


def test_the_pronouns_are_right_and_two_heads_look_there():
    assert float(re.findall(r"([\d.]+)% of 300 pronouns", LOOKING)[0]) >= 98
    assert LOOKING.count("weil es zu müde war.") == LOOKING.count("weil sie zu breit war.") == 2
    shares = dict(
        re.findall(r"^(cross|decoder): head \d\.\d looks there in (\d+)% of 40 sentences$", LOOKING, re.MULTILINE)
    )
    assert len(shares) == 2 and min(map(int, shares.values())) >= 90


def test_fine_tuning_forgets_and_old_pairs_mend_it():
    rows = re.findall(r"^(\w[\w -]*\w) +old +([\d.]+) % +new +([\d.]+) %$", TUNING, re.MULTILINE)
    old, new = ({row[0]: float(row[place]) for row in rows} for place in (1, 2))
    assert [*old] == ["parent", "from scratch", "fine-tuned", "fine-tuned on both"]
    assert old["parent"] > 90 and new["parent"] == old["from scratch"] == 0
    assert new["from scratch"] < 70 and new["fine-tuned"] > 85 and old["fine-tuned"] < 20
    assert old["fine-tuned on both"] > 90 and abs(new["fine-tuned on both"] - new["fine-tuned"]) < 5
    told_lines = re.sub(r"\n+", "\n", TUNING)
    asked = re.findall(r"^(forty-\w+)\n((?:    .+\n){4})", told_lines, re.MULTILINE)
    answers = {text: dict(re.findall(r"^    (\w[\w -]*\w)  +(\S+)$", lines, re.MULTILINE)) for text, lines in asked}
    assert {*answers} == {"forty-two", "forty-second"}
    assert {answers[text]["fine-tuned"] for text in answers} == {"zweiundvierzigste"}
    assert answers["forty-two"]["fine-tuned on both"] == answers["forty-two"]["parent"] == "zweiundvierzig"
    assert answers["forty-second"]["fine-tuned on both"] == "zweiundvierzigste"


def test_positions_and_residual_sums_are_needed_and_other_parts_come_near():
    rows = [
        [cell.strip(" `") for cell in line.split("|")[1:-1]] for line in SWAPPING.splitlines() if line.count("|") == 8
    ]
    exact = {(part, variant): int(share.rstrip("%")) for part, variant, *_, share in rows if share.endswith("%")}
    assert len(exact) == 9
    without_positions, without_residual = exact.pop(("positions", "none")), exact.pop(("residual", "none"))
    assert 40 <= without_positions <= 60 and without_residual <= 10 and min(exact.values()) >= 85
    from keras_transformer.family import SLOTS

    for part, variant, help, source in re.findall(r"^\| (\w+) \| `(\w+)` \| (.+?) \| (.+?) \|", SWAPPING, re.MULTILINE):
        assert (SLOTS[part][variant].help, SLOTS[part][variant].source) == (help, source)


def test_the_saved_run_translates_alike_and_training_goes_on_with_the_same_weights():
    assert TRAINING.count("True") == 2
    assert "computes in bfloat16 with weights in float32" in TRAINING
    watched = re.findall(r"^(\d\.\d{3}) ", TRAINING, re.MULTILINE)
    assert len(watched) == 2 and float(watched[1]) < float(watched[0])
    assert re.search(r"^True$", TRAINING, re.MULTILINE) and not re.search(r"^False$", TRAINING, re.MULTILINE)
