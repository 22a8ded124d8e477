"""Tiny models that Hugging Face's transformers makes and saves, and what transformers computes with them.

`python -m tests.importing.theirs` writes tests/data/huggingface.tar.xz, which tests read without transformers.
"""

import io
import json
import tarfile
import tempfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece
from safetensors.numpy import save

from keras_transformer.importing.tensors import open_safetensors
from tests.tiny_text import lines

Arrays = dict[str, np.ndarray]

ARCHIVE = Path(__file__).resolve().parents[1] / "data" / "huggingface.tar.xz"
TAGS = TAG, _ = ">>deu<<", ">>fra<<"
SIZE, MAX_LENGTH, CONTEXT, IMAGE = 60, 24, 20, 6  # of ids where lines are ids; of targets, texts and images
ODD_LINES = [
    "", "the", "  two   spaces  ", "a\ttab", "the ﬁve ½ ① dogs", "the dogs\u200b \u00a0run", "☃☂ snow Ж", "THE Sea!",
    f"{TAG} the sea", TAG, f"{TAG}  two  green", ">>fra<< the dogs", "<id 66>", "the <extra_id_0> sea <extra_id_99>",
    "e\u0301 combined", "seven, eight; nine: ten", "'\"“”’", "a-b_c/d", "ｆｕｌｌ ｗｉｄｔｈ", "line ", "¿qué?",
]  # fmt: skip
WORDS = ["[PAD]", "the", "dog", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{number}" for number in range(40))]
ROBERTA_WORDS = ["<s>", "<pad>", "</s>", "<unk>", "the", "dog", *WORDS[7:], "<mask>"]
SIDES: dict[str, Any] = {
    "d_model": 16, "encoder_layers": 2, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24, "decoder_ffn_dim": 24,
}  # fmt: skip
BART = {**SIDES, "vocab_size": SIZE, "max_position_embeddings": 28}
T5: dict[str, Any] = {
    "vocab_size": 168, "d_model": 16, "d_kv": 6, "d_ff": 24, "num_layers": 2, "num_decoder_layers": 1, "num_heads": 2,
    "relative_attention_num_buckets": 8, "relative_attention_max_distance": 6, "decoder_start_token_id": 0,
}  # fmt: skip
GATED = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, "layer_norm_epsilon": 0.01}
GPT2: dict[str, Any] = {
    "vocab_size": SIZE, "n_positions": CONTEXT, "n_embd": 16, "n_layer": 2, "n_head": 4, "bos_token_id": 59,
    "eos_token_id": 59,
}  # fmt: skip
ENCODER: dict[str, Any] = {
    "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 12,
    "id2label": {0: "crane", 1: "dog", 2: "owl"}, "label2id": {"crane": 0, "dog": 1, "owl": 2},
}  # fmt: skip
LLAMA: dict[str, Any] = {
    "vocab_size": SIZE, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": CONTEXT, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
# It stretches waves for texts of twice the length that it saw.
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": CONTEXT // 2, "rope_theta": 100.0,
}  # fmt: skip
BERT = {**ENCODER, "vocab_size": len(WORDS), "max_position_embeddings": CONTEXT}
ROBERTA = {**BERT, "max_position_embeddings": CONTEXT + 2, "type_vocab_size": 1}
DISTILBERT: dict[str, Any] = {
    **{name: ENCODER[name] for name in ("id2label", "label2id")}, "vocab_size": len(WORDS), "dim": 8, "n_layers": 2,
    "n_heads": 2, "hidden_dim": 12, "max_position_embeddings": CONTEXT,
}  # fmt: skip
VIT = {**ENCODER, "image_size": IMAGE, "patch_size": 2}
WIDE_GELU: dict[str, Any] = {"hidden_act": "gelu_new", "layer_norm_eps": 0.01}
# The class of each model, and options which together are all that an import reads.
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "marian": ("MarianMTModel", {**SIDES, "scale_embedding": True, "activation_function": "swish"}),
    "marian-apart": ("MarianMTModel", {**SIDES, "scale_embedding": False, "activation_function": "relu"}),
    "marian-start": ("MarianMTModel", {**SIDES, "scale_embedding": True, "activation_function": "swish"}),
    "bart": ("BartForConditionalGeneration", BART),
    "bart-start": ("BartForConditionalGeneration", {**BART, "activation_function": "relu", "scale_embedding": True}),
    "t5": ("T5ForConditionalGeneration", T5),
    "t5-start": ("T5ForConditionalGeneration", T5),
    "t5-gated": ("T5ForConditionalGeneration", {**T5, **GATED}),
    "gpt2": ("GPT2LMHeadModel", GPT2),
    "gpt2-inner": (
        "GPT2LMHeadModel",
        {**GPT2, "n_inner": 20, "activation_function": "gelu", "layer_norm_epsilon": 0.01},
    ),
    "llama": ("LlamaForCausalLM", {**LLAMA, "num_key_value_heads": 4}),
    "llama-grouped": (
        "LlamaForCausalLM",
        {
            **LLAMA, "num_key_value_heads": 2, "head_dim": 6, "tie_word_embeddings": True, "rope_theta": 500.0,
            "hidden_act": "gelu", "rms_norm_eps": 0.01,
        },
    ),
    "llama-stretched": ("LlamaForCausalLM", {**LLAMA, "head_dim": 12, "rope_scaling": LLAMA3}),
    "llama-linear": ("LlamaForCausalLM", {**LLAMA, "rope_scaling": {"rope_type": "linear", "factor": 3.0}}),
    "bert-tokens": ("BertForMaskedLM", BERT),
    "bert-labels": ("BertForSequenceClassification", {**BERT, **WIDE_GELU, "type_vocab_size": 1}),
    "bert": ("BertModel", BERT),
    "roberta-tokens": ("RobertaForMaskedLM", ROBERTA),
    "roberta-labels": ("RobertaForSequenceClassification", {**ROBERTA, "hidden_act": "relu", "layer_norm_eps": 0.01}),
    "roberta": ("RobertaModel", ROBERTA),
    "distilbert-tokens": ("DistilBertForMaskedLM", {**DISTILBERT, "activation": "relu"}),
    "distilbert-labels": ("DistilBertForSequenceClassification", DISTILBERT),
    "distilbert": ("DistilBertModel", DISTILBERT),
    "vit": ("ViTForImageClassification", VIT),
    "vit-plain": ("ViTForImageClassification", {**VIT, **WIDE_GELU, "qkv_bias": False}),
}  # fmt: skip
# By parts of the names of tensors, what their numbers are multiplied by, so that texts differ from one another.
FACTORS = {
    "encoder_attn.": 4, "EncDecAttention": 4, "decoder.layers.0.final_layer_norm.weight": -1, "wte": 4,
    "model.shared": 2, "shared": 6, "decoder.final_layer_norm": -1, "embed_tokens": 4, "lm_head": 4, "relative": 2,
}  # fmt: skip
# A seed, and a bias of the end, with which some translations end, and others do not.
STARTS = {
    "marian": (13, 4.0),
    "marian-apart": (3, 10.0),
    "marian-start": (13, 4.0),
    "bart": (10, 5.0),
    "bart-start": (10, 5.0),
}
# The ids that decoding starts with where generation_config.json names another than config.json.
OTHER_STARTS = {"marian-start": 4, "bart-start": 57, "t5-start": 2}


def sentencepiece_of(text: Iterable[str], size: int, **options: Any) -> bytes:
    """A SentencePiece model that is trained on a text."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(text), model_writer=model, vocab_size=size, minloglevel=2, **options
    )
    return model.getvalue()


def piece_model(seed: int, size: int, **ids: Any) -> bytes:
    """A SentencePiece model, by default with the control ids of SentencePiece and of OPUS-MT."""
    return sentencepiece_of(lines(seed), size, **ids)


def pieces_of(model: bytes) -> list[str]:
    """The pieces of a model that are text."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    pieces = [processor.id_to_piece(id) for id in range(processor.vocab_size())]
    return [piece for id, piece in enumerate(pieces) if not processor.is_control(id) and not processor.is_unknown(id)]


def ids_of(pieces: set[str], *more: str) -> bytes:
    """vocab.json in the order of OPUS-MT: end, unknown, pieces, others, pad."""
    entries = ["</s>", "<unk>", *sorted(pieces), *more, "<pad>"]
    return json.dumps({piece: id for id, piece in enumerate(entries)}).encode()


def marian_files(kind: str) -> dict[str, bytes]:
    """The files of the vocabularies. The joint one lacks two pieces of the source, as those that no text has."""
    models = {"source.spm": piece_model(0, 60), "target.spm": piece_model(1, 56)}
    source, target = map(pieces_of, models.values())
    if kind == "marian-apart":
        return {**models, "vocab.json": ids_of({*source}, *TAGS), "target_vocab.json": ids_of({*target}, "<s>")}
    lacking = [piece for piece in source if piece not in target][-2:]
    return {**models, "vocab.json": ids_of({*source, *target} - {*lacking}, *TAGS)}


class Maker:
    """Makes one model with transformers, in a folder; `expected` is what transformers computes with it."""

    def __init__(self, kind: str, folder: Path):
        import torch
        import transformers

        torch.set_num_threads(1)
        folder.mkdir(parents=True, exist_ok=True)
        self.kind, self.folder, self.torch = kind, folder, torch
        self.library: Any = transformers
        class_name, self.options = KINDS[kind]
        self.tokenizer = self.make_tokenizer()
        model_class = getattr(transformers, class_name)
        self.model: Any = model_class(model_class.config_class(**self.options)).eval()
        self.draw = np.random.default_rng(STARTS.get(self.kind, (3, 0))[0])
        self.randomize()
        self.model.save_pretrained(str(folder))
        with torch.no_grad():
            self.expected: dict[str, Any] = getattr(self, f"of_{kind.partition('-')[0]}")()
        self.expected["options"] = [*self.model.config.to_diff_dict()]  # that differ from what they are by default

    def make_tokenizer(self) -> Any:
        """Saves the tokenizer; puts its ids into the options of the model."""
        tokenizer: Any = None
        if self.kind.startswith("marian"):
            files = marian_files(self.kind)
            paths = {name: self.folder / name for name in files}
            for name, content in files.items():
                paths[name].write_bytes(content)
            tokenizer = self.library.MarianTokenizer(
                *(str(paths[name]) for name in ("source.spm", "target.spm", "vocab.json")),
                target_vocab_file=str(paths["target_vocab.json"]) if "target_vocab.json" in paths else None,
                separate_vocabs="target_vocab.json" in paths, source_lang="en", target_lang="de",
            )  # fmt: skip
            ids = {name: json.loads(content) for name, content in files.items() if name.endswith("json")}
            target = ids.get("target_vocab.json", ids["vocab.json"])
            self.options = self.options | {
                "vocab_size": len(ids["vocab.json"]), "max_position_embeddings": 64, "pad_token_id": target["<pad>"],
                "eos_token_id": 0, "decoder_start_token_id": target.get("<s>", target["<pad>"]),
                "forced_eos_token_id": 0, "decoder_vocab_size": len(target),
            }  # fmt: skip
            if len(ids) > 1:
                self.options |= {"share_encoder_decoder_embeddings": False, "tie_word_embeddings": False}
        elif self.kind.startswith("t5"):
            model = piece_model(0, 60, pad_id=0, eos_id=1, unk_id=2, bos_id=-1, pad_piece="<pad>")
            (self.folder / "spiece.model").write_bytes(model)
            tokenizer = self.library.T5Tokenizer.from_pretrained(str(self.folder))
        elif self.kind.startswith(("bert", "distilbert")):
            words = self.folder / "words.txt"
            words.write_text("".join(f"{word}\n" for word in WORDS))
            tokenizer = self.library.BertTokenizer(str(words))
            words.unlink()
        elif self.kind.startswith("vit"):
            names = [name for name in ("ViTImageProcessorPil", "ViTImageProcessor") if hasattr(self.library, name)]
            make = getattr(self.library, names[0])  # the one that resizes by Pillow
            tokenizer = make(size={"height": IMAGE, "width": IMAGE}, image_std=[0.2, 0.3, 0.4])
        else:
            (self.folder / "tokenizer.json").write_text(tokenizer_of_ids(self.kind))
        if tokenizer is not None:
            tokenizer.save_pretrained(str(self.folder))
        return tokenizer

    def randomize(self) -> None:
        """Sets weights but sinusoids far from their start, and rounds them, so that they take little room."""
        tensors = {name: each for name, each in self.model.named_parameters() if each.requires_grad}
        if "final_logits_bias" in dict(self.model.named_buffers()):
            tensors["final_logits_bias"] = self.model.final_logits_bias
        for name, tensor in tensors.items():
            is_gain = ("norm" in name.lower() or "ln_" in name) and not name.endswith("bias")
            values = self.draw.normal(float(is_gain), 0.3, tuple(tensor.shape))
            values *= next((factor for part, factor in FACTORS.items() if part in name), 1)
            tensor.data.copy_(self.torch.from_numpy(np.round(values * 32) / 32))
        bias: Any = tensors.get("final_logits_bias")
        end = STARTS.get(self.kind, (0, 0.0))[1]
        if self.kind.startswith("marian"):
            bias[0, :2] = self.torch.tensor([end, -100.0])  # no unknown id, which our search never emits
        elif self.kind.startswith("bart"):
            bias[0, [1, 2]] = self.torch.tensor([-100.0, end])  # nor pad
        elif self.kind.startswith("t5"):
            self.model.get_output_embeddings().weight.data[1].mul_(2)  # some translations end

    def translations(self, rows: list[list[int]], size: int, never: list[int], **search: Any) -> dict[str, Any]:
        """Logits of random targets, and the targets of a greedy search."""
        start, end = (int(getattr(self.model.config, f"{name}_token_id")) for name in ("decoder_start", "eos"))
        start = OTHER_STARTS.get(self.kind, start)
        search |= {"decoder_start_token_id": start, "num_beams": 3, "length_penalty": 2.0, "max_length": MAX_LENGTH}
        self.model.generation_config.update(**search, bad_words_ids=[[id] for id in never] or None)
        self.model.generation_config.save_pretrained(str(self.folder))
        targets = self.draw.integers(3, size, (4, 9)).tolist()
        found: dict[str, Any] = {"sources": rows, "targets": targets, "logits": [], "greedy": []}
        for row, target in zip(rows, targets, strict=False):
            inputs = {"input_ids": self.torch.tensor([row]), "decoder_input_ids": self.torch.tensor([[start, *target]])}
            found["logits"] += self.model(**inputs).logits.tolist()
        for row in rows:
            written = self.model.generate(self.torch.tensor([row]), do_sample=False, num_beams=1)[0].tolist()[1:]
            found["greedy"].append(written[: written.index(end) + 1] if end in written else written)
        return found

    def of_text(self, model: str, ids: range, size: int, never: list[int]) -> dict[str, Any]:
        """The same of a model with a tokenizer of text; what that makes of lines, and of random ones of these ids."""
        some = [*lines(7, 9), *(f"{TAG} {line}" for line in lines(8, 3))]
        found = self.translations([self.tokenizer(line)["input_ids"] for line in some], size, never)
        everything = "".join(pieces_of((self.folder / model).read_bytes())).replace("\u2581", " ")
        odd = [*ODD_LINES, *lines(3, 20), everything]
        rows = [self.draw.choice(ids, length).tolist() for length in range(12)]
        texts, written = (
            [self.tokenizer.decode(row, skip_special_tokens=True) for row in each] for each in (found["greedy"], rows)
        )
        pieces = {line: self.tokenizer(line)["input_ids"] for line in odd}
        return {"lines": some, "texts": texts, "pieces": pieces, "rows": rows, "written": written, **found}

    def of_marian(self) -> dict[str, Any]:
        size = self.model.config.decoder_vocab_size - 4
        found = self.of_text("source.spm", range(2, size), size, [self.model.config.pad_token_id])
        return {"target_pieces": {line: self.tokenizer(text_target=line)["input_ids"] for line in lines(4, 8)}, **found}

    def of_t5(self) -> dict[str, Any]:
        return self.of_text("spiece.model", range(3, 60), 160, [0, 2, *range(160, 168)])

    def of_bart(self) -> dict[str, Any]:
        rows = [[0, *self.draw.integers(4, SIZE, self.draw.integers(2, 9)).tolist(), 2] for _ in range(12)]
        return self.translations(rows, SIZE, [], forced_bos_token_id=0)

    def of_language_model(self) -> dict[str, Any]:
        """Logits of lines with starts and ends inside, as between turns of a chat; greedy texts; log P of a line."""
        start, end = self.model.config.bos_token_id, self.model.config.eos_token_id
        rows = self.draw.integers(3, SIZE - 1, (4, CONTEXT))
        rows[:, [0, 5, 9]], rows[:, [4, -1]] = start, end
        prompts = self.draw.integers(3, SIZE - 1, (6, 5))
        prompts[::2, 1:3] = end, start
        never = None if start == end else [[start]]  # our search emits no start id
        greedy = []
        for prompt in prompts.tolist():
            ids = self.torch.tensor([[start, *prompt]])
            options = {"do_sample": False, "pad_token_id": 0, "bad_words_ids": never, "attention_mask": ids * 0 + 1}
            found = self.model.generate(ids, max_new_tokens=10, **options)[0, 6:].tolist()
            greedy.append(found[: found.index(end)] if end in found else found)
        logits = self.model(self.torch.from_numpy(rows)).logits
        log_probs = self.torch.log_softmax(logits[1].double(), -1)[range(CONTEXT - 1), rows[1, 1:]]
        arrays = {"rows": rows, "logits": logits, "prompts": prompts}
        told = {name: each.tolist() for name, each in arrays.items()}
        return {**told, "greedy": greedy, "log_prob": float(log_probs.sum())}

    of_gpt2 = of_llama = of_language_model

    def of_bert(self) -> dict[str, Any]:
        words = words_of(self.kind)
        start, end = (words.index(word) for word in (("[CLS]", "[SEP]") if words is WORDS else ("<s>", "</s>")))
        first, last = words.index("w0"), words.index("w39")
        rows = [[start, *self.draw.integers(first, last + 1, length).tolist(), end] for length in (3, 9, 1, 17)]
        outputs = [self.model(self.torch.tensor([row])) for row in rows]
        if "-" not in self.kind:  # the mean of the states, as sentence-transformers has it
            return {"rows": rows, "vectors": [each.last_hidden_state[0].mean(0).tolist() for each in outputs]}
        return {"rows": rows, "logits": [each.logits[0].tolist() for each in outputs]}

    of_roberta = of_distilbert = of_bert

    def of_vit(self) -> dict[str, Any]:
        shapes = ((IMAGE, IMAGE, 3), (13, 8, 3), (5, 17, 3))
        images = [self.draw.integers(0, 256, shape).astype("uint8") for shape in shapes]
        from PIL import Image

        inputs = self.tokenizer([Image.fromarray(image) for image in images], return_tensors="pt")["pixel_values"]
        logits = self.model(inputs).logits.tolist()
        return {"images": [image.tolist() for image in images], "pixels": inputs.tolist(), "logits": logits}


def words_of(kind: str) -> list[str]:
    """The vocabulary of an encoder of text."""
    return ROBERTA_WORDS if kind.startswith("roberta") else WORDS


def tokenizer_of_ids(kind: str) -> str:
    """A tokenizer.json whose words are ids, or RoBERTa's words.

    BART's puts 0 before a text and 2 behind it, Llama's puts 1 before it, RoBERTa's its start and end.
    """
    vocab = {str(id): id for id in range(SIZE)}
    around = {"bart": ("0", "2"), "llama": ("1", "")}.get(kind.partition("-")[0], ("", ""))
    if kind.startswith("roberta"):
        vocab, around = {word: id for id, word in enumerate(ROBERTA_WORDS)}, ("<s>", "</s>")
    single: list[Any] = [{"SpecialToken": {"id": word, "type_id": 0}} for word in around if word]
    single.insert(bool(around[0]), {"Sequence": {"id": "A", "type_id": 0}})
    special = {word: {"id": word, "ids": [vocab[word]], "tokens": [word]} for word in around if word}
    names = [word for word in vocab if word.startswith("<")]
    flags: dict[str, Any] = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    added = [{"id": vocab[word], "content": word, **flags, "special": True} for word in names]
    template = {"type": "TemplateProcessing", "single": single, "pair": single, "special_tokens": special}
    model = {"type": "WordLevel", "vocab": vocab, "unk_token": [*vocab][3]}
    return json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": template if special else None, "decoder": None,
        "model": model,
    })  # fmt: skip


def unpack(kind: str, folder: Path) -> dict[str, Any]:
    """Writes the files of a stored model into a folder; returns what transformers computed with it."""
    folder.mkdir(parents=True, exist_ok=True)
    if kind.startswith(("bart", "gpt2", "llama", "roberta")):
        (folder / "tokenizer.json").write_text(tokenizer_of_ids(kind))
    for path, content in _stored()[kind].items():
        (folder / path).write_bytes(content)
    expected = json.loads((folder / "expected").read_text(encoding="utf-8"))
    (folder / "expected").unlink()
    return expected


def write(kind: str, folder: Path, tensors: Arrays | None = None, **changes: Any) -> Path:
    """Writes the files of a stored model, if asked with other tensors; `changes` are options of config.json."""
    unpack(kind, folder)
    change(folder, "config.json", **changes)
    if tensors is not None:
        (folder / "model.safetensors").write_bytes(safetensors(tensors))
    return folder


def write_marian(folder: Path) -> Path:
    """Writes the stored Marian with larger embeddings, so that int8 changes few of its translations."""
    tensors = tensors_of(write("marian", folder))
    tensors["model.shared.weight"] *= 2
    tensors["final_logits_bias"][0, 0] = 0  # of the end
    return write("marian", folder, tensors)


def change(folder: Path, name: str, **values: Any) -> None:
    """Sets entries of a JSON file, which may be new."""
    path = folder / name
    old = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    path.write_text(json.dumps({**old, **values}), encoding="utf-8")


def tensors_of(folder: Path) -> Arrays:
    """The tensors of a folder by their names."""
    file = open_safetensors(folder / "model.safetensors")
    return {name: file.read(name) for name in file.places}


def safetensors(arrays: Arrays, dtype: Any = "float32") -> bytes:
    """Arrays in safetensors' format."""
    return save({name: np.asarray(array, dtype, order="C") for name, array in arrays.items()}, {"format": "pt"})


def split(folder: Path, count: int = 3) -> Path:
    """Puts the tensors of a folder into several files, with an index; returns the index."""
    arrays = tensors_of(folder)
    (folder / "model.safetensors").unlink()
    homes: dict[str, str] = {}
    for number in range(count):
        part, name = {each: arrays[each] for each in [*arrays][number::count]}, f"model-{number}.safetensors"
        (folder / name).write_bytes(safetensors(part))
        homes |= dict.fromkeys(part, name)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": homes}), encoding="utf-8")
    return index


@cache
def _stored() -> dict[str, dict[str, bytes]]:
    """The files of each model."""
    found: dict[str, dict[str, bytes]] = {}
    with tarfile.open(ARCHIVE) as archive:
        for member in archive:
            kind, _, name = member.name.partition("/")
            found.setdefault(kind, {})[name] = archive.extractfile(member).read()  # type: ignore[union-attr]
    return found


def main() -> None:
    """Makes and stores every model."""
    with tempfile.TemporaryDirectory() as temporary, tarfile.open(ARCHIVE, "w:xz", preset=9) as archive:
        for kind in KINDS:
            folder = Path(temporary) / kind
            text = json.dumps(Maker(kind, folder).expected)
            rounded = json.loads(text, parse_float=lambda digits: float(f"{float(digits):.6g}"))
            (folder / "expected").write_text(json.dumps(rounded), encoding="utf-8")
            for path in sorted(folder.iterdir()):
                content, entry = path.read_bytes(), tarfile.TarInfo(f"{kind}/{path.name}")  # without a date and a name
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))


if __name__ == "__main__":
    main()
