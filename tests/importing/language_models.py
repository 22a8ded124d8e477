"""Small random models of transformers for many languages, with vocabularies trained on a few lines."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece

from keras_transformer.text.sentences import padded
from keras_transformer.text.tokenizer import END, START
from tests.importing.text_models import saved
from tests.importing.theirs import SIDES, sentencepiece_of
from tests.tiny_text import lines

TAGS = ["<2de>", "<2fr>", "<2zh_Latn>"]
M2M_TAGS, NLLB_TAGS = ["__de__", "__en__", "__ast__"], ["deu_Latn", "eng_Latn", "zho_Hans"]
TEXT = [*lines(0), "Zürich, naïve café déjà-vu.", "Это проверка!", "two  spaces"]
T5: dict[str, Any] = {
    "d_model": 16, "d_kv": 6, "d_ff": 24, "num_layers": 2, "num_heads": 2, "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 6, "decoder_start_token_id": 0, "tie_word_embeddings": False,
    "feed_forward_proj": "gated-gelu", "layer_norm_epsilon": 0.01,
}  # fmt: skip


pieces = partial(sentencepiece_of, TEXT)


def mt5(folder: Path) -> Any:
    """mT5: rows for more pieces than there are, bytes for rare characters, and an output of its own."""
    import transformers

    model = pieces(318, pad_id=0, eos_id=1, unk_id=2, bos_id=-1, byte_fallback=True, character_coverage=0.98)
    (folder / "spiece.model").write_bytes(model)
    options: Any = {"extra_ids": 0, "additional_special_tokens": None, "pad_token": "<pad>", "sp_model_kwargs": {}}
    (folder / "tokenizer_config.json").write_text(json.dumps(options))
    made: Any = transformers.MT5ForConditionalGeneration(transformers.MT5Config(vocab_size=352, **T5))
    made.lm_head.weight = made.lm_head.weight.__class__(made.lm_head.weight.clone())
    return saved(folder, made)


def madlad(folder: Path) -> Any:
    """MADLAD-400: no `<pad>`, decoding starts with `<unk>`, and tags of languages are pieces."""
    import transformers

    model = pieces(80, user_defined_symbols=TAGS)
    (folder / "spiece.model").write_bytes(model)
    options: Any = {
        "extra_ids": 0, "additional_special_tokens": [], "bos_token": "<s>", "pad_token": "<s>", "unk_token": "<unk>",
        "added_tokens_decoder": {str(id): {"content": text} for id, text in enumerate(("<unk>", "<s>", "</s>"))},
    }  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(options))
    own: Any = {"vocab_size": 96, "pad_token_id": 1, "eos_token_id": 2, "scale_decoder_outputs": False}
    config = transformers.T5Config(**own, **T5)
    made: Any = transformers.T5ForConditionalGeneration(config)
    made.lm_head.weight = made.lm_head.weight.__class__(made.lm_head.weight.clone())
    return saved(folder, made)


def m2m_model(folder: Path, size: int, **options: Any) -> Any:
    import transformers

    config = transformers.M2M100Config(vocab_size=size, max_position_embeddings=64, **SIDES, **options)
    return saved(folder, transformers.M2M100ForConditionalGeneration(config))


def write_m2m_tokenizer(folder: Path) -> int:
    """A list of pieces, which lacks one of SentencePiece's, and a list of tags without ids; how many ids there are."""
    folder.mkdir(parents=True, exist_ok=True)
    own = pieces(80)
    (folder / "sentencepiece.bpe.model").write_bytes(own)
    cut = sentencepiece.SentencePieceProcessor(model_proto=own)
    texts = ["<s>", "<pad>", "</s>", "<unk>", *map(cut.id_to_piece, range(3, cut.vocab_size() - 1))]
    (folder / "vocab.json").write_text(json.dumps({text: id for id, text in enumerate(texts)}))
    (folder / "special_tokens_map.json").write_text(json.dumps({"additional_special_tokens": M2M_TAGS}))
    return len(texts) + len(M2M_TAGS)


def m2m(folder: Path) -> Any:
    """M2M-100."""
    return m2m_model(folder, write_m2m_tokenizer(folder) + 3)


def m2m_saved(folder: Path) -> Any:
    """M2M-100 as transformers 5 writes it where the files that were loaded name the tags."""
    import transformers

    made: Any = transformers.M2M100Tokenizer
    model = m2m(folder)
    made.from_pretrained(str(folder)).save_pretrained(str(folder))
    (folder / "special_tokens_map.json").unlink()
    return model


def nllb_folder(folder: Path) -> Any:
    """The files of NLLB's tokenizer as transformers 5 writes them beside fairseq's; the tokenizer."""
    import transformers

    (folder / "sentencepiece.bpe.model").write_bytes(pieces(120, model_type="bpe"))
    named = {"tokenizer_class": "NllbTokenizer", "additional_special_tokens": NLLB_TAGS}
    (folder / "tokenizer_config.json").write_text(json.dumps(named))
    tokenizer: Any = transformers.NllbTokenizer.from_pretrained(str(folder))
    tokenizer.save_pretrained(str(folder))
    return tokenizer


def nllb(folder: Path) -> Any:
    """NLLB-200 with its SentencePiece model."""
    return m2m_model(folder, len(nllb_folder(folder)) + 2, scale_embedding=False, activation_function="gelu")


def nllb_alone(folder: Path) -> Any:
    """NLLB-200 as transformers 5 writes it, with tokenizer.json alone."""
    model = nllb(folder)
    (folder / "sentencepiece.bpe.model").unlink()
    return model


def mbart_alone(folder: Path, **options: Any) -> Any:
    """mBART-50 as transformers 5 writes it, with tokenizer.json alone, which has all 52 of its tags."""
    import transformers

    made: Any = transformers.MBart50Tokenizer
    (folder / "sentencepiece.bpe.model").write_bytes(pieces(80))
    tokenizer = made.from_pretrained(str(folder))
    tokenizer.save_pretrained(str(folder))
    (folder / "sentencepiece.bpe.model").unlink()
    sizes: Any = {"vocab_size": len(tokenizer), "max_position_embeddings": 64, "decoder_start_token_id": 2}
    config = transformers.MBartConfig(**{"scale_embedding": True, **sizes, **SIDES, **options})
    return saved(folder, transformers.MBartForConditionalGeneration(config))


def mbart(folder: Path) -> Any:
    """mBART-50 with the files of older versions: the SentencePiece model, and a list of tags without ids."""
    model = mbart_alone(folder, scale_embedding=False, activation_function="relu")
    tags = json.loads((folder / "tokenizer_config.json").read_text())["extra_special_tokens"][2:]
    (folder / "special_tokens_map.json").write_text(json.dumps({"additional_special_tokens": tags}))
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "MBart50Tokenizer"}))
    (folder / "sentencepiece.bpe.model").write_bytes(pieces(80))
    return model


FOLDERS: dict[str, Callable[[Path], Any]] = {
    "mt5": mt5, "madlad": madlad, "m2m": m2m, "m2m-saved": m2m_saved, "nllb": nllb, "nllb-alone": nllb_alone,
    "mbart": mbart, "mbart-alone": mbart_alone,
}  # fmt: skip


def tokenizer_of_m2m(folder: Path) -> Any:
    """Their tokenizer of M2M-100, with their list of codes cut down to ours."""
    import transformers

    codes = transformers.models.m2m_100.tokenization_m2m_100.FAIRSEQ_LANGUAGE_CODES
    codes["m2m100"] = [tag.strip("_") for tag in M2M_TAGS]
    made: Any = transformers.M2M100Tokenizer
    return made(
        str(folder / "vocab.json"), str(folder / "sentencepiece.bpe.model"), additional_special_tokens=[*M2M_TAGS]
    )


def logits_agree(imported: Any, model: Any, sources: list[list[int]]) -> None:
    """The logits are theirs within 1e-4 of their range. `sources` are their ids, ends included."""
    import torch

    ids, draw = imported.target.ids, np.random.default_rng(1)
    pieces = [id for id in range(imported.config["num_control_ids"], len(ids)) if ids[id] not in ids[: END + 1]]
    own = imported.model()
    for row in sources:
        target = draw.choice(pieces, 7).tolist()
        theirs = torch.tensor([[ids[id] for id in [START, *target]]])
        with torch.no_grad():
            expected = model(input_ids=torch.tensor([row]), decoder_input_ids=theirs).logits.numpy()
        places = imported.source.ids
        ours = [END if id == places[END] else places.index(id) for id in row]
        found = np.array(own({"source_ids": padded([ours]), "target_ids": np.array([[START, *target]])}))
        np.testing.assert_allclose(found[..., pieces], expected[..., ids][..., pieces], atol=1e-4 * np.ptp(expected))


def greedy(model: Any, rows: list[list[int]], never: set[int], longest: int, **forced: Any) -> list[list[int]]:
    """What a greedy search of theirs writes, but for the last id, where both may be forced to end."""
    import torch

    banned = {"bad_words_ids": [[id] for id in sorted(never)]} if never else {}
    options: Any = {"max_new_tokens": longest, "do_sample": False, "num_beams": 1, **banned, **forced}
    with torch.no_grad():
        found = [model.generate(torch.tensor([row]), **options)[0].tolist()[1:] for row in rows]
    return [row[: longest - 1] for row in found]
