"""The way of a parameter through a source of four files: its stays, its returns, and where it ends."""

from benchmarks.journey import House, Journey

FILES = {
    "train.py": "from keras_transformer.a import Room, first\ndef train(given):\n    first(given)\n    print(given)\n",
    "keras_transformer/a.py": (
        "from keras_transformer import b\nfrom keras_transformer.c import last\n"
        "class Room:\n    def __init__(self, path):\n        self.path = path\n"
        "def first(given):\n    made = b.second({**given})\n    own(made)\n    b.second(made)\n    b.second(1)\n"
        "    for one in made:\n        last(one)\n"
        "def own(made):\n    return Room(path=made)\n"
    ),
    "keras_transformer/b.py": "def second(x):\n    return x\n",
    "keras_transformer/c.py": "def last(x):\n    never(x)\ndef never(x):\n    pass\n",
}


def test_a_stay_is_a_run_of_entered_functions_in_one_file(tmp_path) -> None:
    (tmp_path / "keras_transformer").mkdir()
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    house = House(tmp_path)
    whole = Journey(house, until="")
    whole.enter(house.functions["train.py", "train"], {"given"})
    assert [stay.rpartition("/")[2] for stay in whole.stays] == ["train.py", "a.py", "b.py", "a.py", "b.py", "c.py"]
    assert whole.num_returns == 2
    other = Journey(house, until="")
    other.enter(house.functions["keras_transformer/a.py", "first"], {"nothing"})
    assert other.stays == ["keras_transformer/a.py"], "what is not made of the parameter is not followed"
