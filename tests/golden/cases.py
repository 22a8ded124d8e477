"""The runs of the golden material: for each a task, the text that it trains on, its flags, and what it is asked."""

import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

WORDS = ["ba", "do", "fi", "gu", "ka", "lo", "mi", "nu", "pa", "ro", "si", "tu"]
LABELS = {"animal": ["cat", "dog", "hen"], "colour": ["red", "blue", "gold"], "plant": ["oak", "rose", "moss"]}
CORNERS = {"left": (0, 0), "right": (0, 2), "below": (2, 0)}
SEARCH = {"num_beams": 3, "length_penalty": 0.8, "max_length": 12}
MODEL = "--num-layers 1 --num-heads 2 --hidden-dim 16 --intermediate-dim 32 --dropout 0"
TRAINING = "--token-budget 512 --warmup-steps 20 --learning-rate-factor 2 --average-last 1 --devices cpu --seed 1"


class Task(NamedTuple):
    """What the runs of a task have in common."""

    write: Callable[[Path, random.Random], None]  # writes the files that it trains on into a folder
    flags: str  # of train.py
    questions: list[Any]  # what its runs and exports are asked; none for the run's validation images
    search: dict[str, Any]  # what is baked into exports


def write_lines(path: Path, lines: Iterable[str]) -> Path:
    """Writes a text file; returns its path."""
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def write_sides(folder: Path, name: str, rows: list[list[str]], targets: Iterable[str]) -> None:
    """Writes sentences and what they become."""
    write_lines(folder / f"{name}source", map(" ".join, rows))
    write_lines(folder / f"{name}target", targets)


def write_pairs(folder: Path, draw: random.Random) -> None:
    """Sentences of syllables, and for each syllable the next one in the list."""
    following = dict(zip(WORDS, [*WORDS[1:], WORDS[0]], strict=True))
    for name, count in {"": 600, "valid-": 12}.items():
        rows = [draw.choices(WORDS, k=draw.randint(1, 6)) for _ in range(count)]
        write_sides(folder, name, rows, (" ".join(map(following.__getitem__, row)) for row in rows))


def write_answers(folder: Path, draw: random.Random) -> None:
    """Sentences, and the answer which word each begins with."""
    for name, count in {"": 600, "valid-": 8}.items():
        rows = [draw.choices(WORDS[:6], k=draw.randint(2, 6)) for _ in range(count)]
        write_sides(folder, name, rows, (f"the one is {row[0]}" for row in rows))


def write_text(folder: Path, draw: random.Random) -> None:
    """Lines whose second half follows from the first."""
    for name, count in {"text": 400, "valid-text": 8}.items():
        rows = [draw.sample(WORDS[:7], 2) for _ in range(count)]
        write_lines(folder / name, (f"{one} and {other}: the {other} of {one}" for one, other in rows))


def write_repeated(folder: Path, draw: random.Random) -> None:
    """Lines of one word, several times."""
    for name, count in {"text": 600, "valid-text": 8}.items():
        write_lines(folder / name, (" ".join([draw.choice(WORDS[:6])] * draw.randint(3, 6)) for _ in range(count)))


def write_labelled(folder: Path, draw: random.Random) -> None:
    """Texts of which one word tells the label."""
    for name, count in {"text": 400, "valid-text": 8}.items():
        lines = []
        for _ in range(count):
            label = draw.choice([*LABELS])
            words = [*draw.choices(["the", "a", "old", "one", "of"], k=draw.randint(1, 5)), draw.choice(LABELS[label])]
            lines.append(f"{label}\t{' '.join(draw.sample(words, len(words)))}")
        write_lines(folder / name, lines)


def write_images(folder: Path, draw: random.Random) -> None:
    """Images with a bright corner, which is the label."""
    from PIL import Image

    for name, count in {"images": 30, "valid-images": 2}.items():
        for label, (top, left) in CORNERS.items():
            (folder / name / label).mkdir(parents=True)
            bright = [(row, column) for row in (top, top + 1) for column in (left, left + 1)]
            for number in range(count):
                pixels = [draw.randint(0, 99) + 120 * (divmod(place, 4) in bright) for place in range(16)]
                Image.frombytes("L", (4, 4), bytes(pixels)).save(folder / name / label / f"{number:02}.png")


def write_log(folder: Path, draw: random.Random) -> None:
    """Users take turns between two rings of items."""
    rows = ["user\titem\ttime"]
    for user in range(200):
        first, second = draw.choices(range(6), k=2)
        for time in range(draw.randint(6, 19)):
            item = f"a{(first + time // 2) % 6}" if time % 2 == 0 else f"b{(second + time // 2) % 6}"
            rows.append(f"user {user}\t{item}\t{time}")
    write_lines(folder / "log", rows)


PAIRS = "--source source --target target --valid-source valid-source --valid-target valid-target"
TEXT = "--text text --valid-text valid-text"
LONG = " ".join(WORDS * 4)
TASKS = {
    "translation": Task(
        write_pairs,
        f"{PAIRS} --preset tiny --vocabulary-size 32 --max-source-length 24 --learning-rate-factor 0.5 "
        "--warmup-steps 100 --steps 1200",
        ["ba do fi", "gu", "ka lo mi nu pa ro", "si tu ba ba", "", " \t ", "do zz 日本", "<s> lo </s>", "nu\0pa", LONG],
        SEARCH,
    ),
    "language-model": Task(
        write_text,
        f"--task language-model {TEXT} --vocabulary-type char --context-length 32 --learning-rate-factor 0.5 "
        "--warmup-steps 100 --steps 1000",
        ["ba and do:", "fi and ", "gu", "k", "lo and mi: the mi of", "ba and do: the do of ba\nfi and"],
        SEARCH,
    ),
    "answers": Task(
        write_answers,
        f"--task language-model {PAIRS} --vocabulary-size 26 --context-length 40 --residual pre_norm --steps 300",
        ["ba do fi", "gu gu", "ka", "lo fi fi ba", "fi zz lo", "do\nka", f"gu {LONG}"],
        {"num_beams": 3, "length_penalty": 0.8},
    ),
    "masked-tokens": Task(
        write_repeated,
        f"--task masked-tokens {TEXT} --vocabulary-size 22 --context-length 16 --residual pre_norm --steps 300",
        ["ba ba ba", "do do <mask> do", "fi <mask> <mask>", "gu ka", "", "lo" + " lo" * 15],
        {},
    ),
    "classification": Task(
        write_labelled,
        f"--task classification {TEXT} --vocabulary-size 36 --context-length 16 --residual pre_norm --steps 160",
        ["the old cat", "red", "one of a rose", "blue the the the", "", "moss zz", "the " * 30 + "hen"],
        {},
    ),
    "images": Task(
        write_images,
        "--task images --images images --valid-images valid-images --image-size 4 --patch-size 2 --channels 1 "
        "--residual pre_norm --steps 100",
        [],
        {},
    ),
    "next-item": Task(
        write_log,
        "--task next-item --log log --context-length 8 --residual pre_norm --steps 300",
        [line.split() for line in ("a0 b3 a1 b4", "a5", "", "b0 a2 b0 a2", "b1 a3 b2 a4 b3 a5 b4 a0 b5")],
        {},
    ),
}
# Together they hold every row of `part_registry.SLOTS`.
VARIANTS = {
    "modern": "--positions rotary --residual pre_norm --norm rms --feed-forward gated --activation silu "
    "--attention full:num_key_value_heads=1 --encoder-layers 2",
    "magneto": "--positions xpos:scale_base=15 --residual sub_norm --score general --activation gelu --attention-bias "
    "--decoder-attention full:num_key_value_heads=1 --separate-vocabularies",
    "t5": "--positions buckets:num_buckets=8,max_distance=6 --residual pre_norm --norm rms:epsilon=1e-5 "
    "--activation gelu_tanh --no-tied-output --score dot --embedding-scale 1 --key-dim 6 --decoder-layers 2",
    "windows": "--positions alibi --attention windowed:width=4 --decoder-attention windowed:width=3 --output-bias "
    "--embedding-norm",
    "bahdanau": "--positions learned:offset=2,separate=True --score additive --residual pre_norm --attention-bias",
    "luong": "--positions none --score location:max_length=40 --residual none",
    "interpolated": "--positions sinusoidal:interpolation=1.5,offset=1 --feed-forward gated:use_bias=True",
    "universal": "--stack universal --num-layers 3",
    "experts": "--feed-forward experts:num_experts=3 --attention local:width=4 --residual pre_norm",
    "compressed": "--attention compressed:width=4 --positions sinusoidal --num-layers 2",
}
# These are kept as SavedModels too.
IN_SAVED_MODEL = ("universal", "experts", "compressed")
SMALLER = "--hidden-dim 8 --intermediate-dim 16 --learning-rate-factor 1 --steps 300"
CASES = [*TASKS, *VARIANTS]


def task_of(name: str) -> Task:
    """The task of a case: a variant is one of translation."""
    return TASKS[name if name in TASKS else "translation"]


def flags_of(name: str, *more: str) -> list[str]:
    """The flags of train.py for a case, and more; it runs where its files are."""
    variant = f"{SMALLER} {VARIANTS[name]}" if name in VARIANTS else ""
    return f"{MODEL} {TRAINING} {task_of(name).flags} {variant} {' '.join(more)}".split()


def write_files(name: str, folder: Path) -> None:
    """Writes what a case trains on."""
    task_of(name).write(folder, random.Random(7))
