"""Chooses which model translates a text: by its name, by the languages, or by what language the text seems to be in."""

from __future__ import annotations

import asyncio
import re
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from starlette.requests import Request

from keras_transformer.core.errors import RequestError
from keras_transformer.core.extras import required
from keras_transformer.serving.batching import Part, Room
from keras_transformer.serving.described import JSON
from keras_transformer.serving.hosting import Hosted
from keras_transformer.serving.service import MOST_TOLD, Service, does
from keras_transformer.serving.translating import TranslationEngine
from keras_transformer.serving.wire import Work

if TYPE_CHECKING:
    from lingua import LanguageDetector
    from py3langid.langid import LanguageIdentifier

SURE = 0.8  # the least confidence with which a language is told
MOST_READ = 2_000  # characters, which tell a language as well as more
AUTO = "auto"  # in place of a language: the server detects it
MOST_DETECTED, LEAST_DETECTED = 100_000, 200  # characters of all texts together, and of each, that tell the language
MOST_AT_ONCE = 4_000  # characters that are read between two events
# Of a token, before a text is divided into tokens: so many are surely one, and so many most likely.
MOST_CHARACTERS, USUAL_CHARACTERS = 16, 4
# Languages: as ISO 639-1 spells them and those who detect, as other models do, and in English.
LANGUAGES = """
af afr Afrikaans|am amh Amharic|an arg Aragonese|ar ara,arb Arabic|as asm Assamese|az aze,azj Azerbaijani|ba bak Bashkir
be bel Belarusian|bg bul Bulgarian|bn ben Bengali|br bre Breton|bs bos Bosnian|ca cat Catalan|cs ces Czech|cy cym Welsh
da dan Danish|de deu German|dz dzo Dzongkha|el ell Greek|en eng English|eo epo Esperanto|es spa Spanish
et est,ekk Estonian|eu eus Basque|fa fas,pes Persian|fi fin Finnish|fo fao Faroese|fr fra French|fy fry Frisian
ga gle Irish|gd gla Gaelic|gl glg Galician|gu guj Gujarati|ha hau Hausa|he heb Hebrew|hi hin Hindi|hr hrv Croatian
ht hat Haitian|hu hun Hungarian|hy hye Armenian|id ind Indonesian|ig ibo Igbo|is isl Icelandic|it ita Italian
ja jpn Japanese|jv jav Javanese|ka kat Georgian|kk kaz Kazakh|km khm Khmer|kn kan Kannada|ko kor Korean
ku kur,kmr,ckb Kurdish|ky kir Kyrgyz|la lat Latin|lb ltz Luxembourgish|lg lug Ganda|ln lin Lingala|lo lao Lao
lt lit Lithuanian|lv lav,lvs Latvian|mg mlg,plt Malagasy|mk mkd Macedonian|ml mal Malayalam|mn mon,khk Mongolian
mr mar Marathi|ms msa,zsm Malay|mt mlt Maltese|my mya Burmese|ne nep,npi Nepali|nl nld Dutch|nn nno Nynorsk
no nor,nob,nb Norwegian|oc oci Occitan|om orm,gaz Oromo|or ori,ory Odia|pa pan Punjabi|pl pol Polish|ps pus,pbt Pashto
pt por Portuguese|qu que,quy Quechua|ro ron Romanian|ru rus Russian|rw kin Kinyarwanda|sa san Sanskrit|se sme Sami
si sin Sinhala|sk slk Slovak|sl slv Slovenian|sn sna Shona|so som Somali|sq sqi,als Albanian|sr srp Serbian
st sot Sotho|sv swe Swedish|sw swa,swh Swahili|ta tam Tamil|te tel Telugu|tg tgk Tajik|th tha Thai|tk tuk Turkmen
tl tgl,fil Tagalog|tr tur Turkish|tt tat Tatar|ug uig Uyghur|uk ukr Ukrainian|ur urd Urdu|uz uzb,uzn Uzbek
vi vie Vietnamese|vo vol Volapük|wa wln Walloon|xh xho Xhosa|yo yor Yoruba|zh zho,cmn Chinese|zu zul Zulu
"""
_ROWS = [row.split() for row in re.split(r"[|\n]", LANGUAGES.strip())]
LANGUAGE_NAMES = {code: name for code, _, name in _ROWS}
_SPELLED = {other: code for code, others, _ in _ROWS for other in others.split(",")}
Answer = TypeVar("Answer")
Result = TypeVar("Result")
_loading = threading.Lock()


class Detected(NamedTuple):
    """What a text seems to be written in.

    Args:
        candidates: each language that is served, with its probability among them, the likeliest first.
        other: the language that it surely is, if that is not served.
    """

    candidates: list[tuple[str, float]]
    other: str | None = None

    @property
    def language(self) -> str | None:
        """The language; None if it is not sure."""
        is_sure = bool(self.candidates) and self.confidence >= SURE and self.other is None
        return self.candidates[0][0] if is_sure else None

    @property
    def confidence(self) -> float:
        """The probability of the likeliest language, among those that are served."""
        return self.candidates[0][1] if self.candidates else 0.0

    def best(self, among: Iterable[str]) -> tuple[str, float] | None:
        """Returns the likeliest of some languages, and its probability among all that are served; None if none of them
        can be told."""
        some = set(among)
        return next((one for one in self.candidates if one[0] in some), None)


def detected(text: str, languages: Iterable[str]) -> Detected:
    """Returns what language a text seems to be in, by py3langid; among those that are served by lingua, which tells
    short texts better, where the extra `lingua` is installed.

    Args:
        text: the text.
        languages: the codes that are served; of such as "de_DE" the first part counts.
    """
    text = text[:MOST_READ]
    ranked = dict(_identifier().rank(text))
    served = {code: language_of(code) for code in languages if language_of(code) in ranked}
    found = _by_lingua(text, frozenset(served.values())) or ranked
    shares = {code: found[language] for code, language in served.items()}
    whole = sum(shares.values())
    if not whole:
        return Detected([])
    candidates = sorted(((code, share / whole) for code, share in shares.items()), key=lambda one: (-one[1], one[0]))
    first = next(iter(ranked))
    is_other = ranked[first] >= SURE and first not in map(language_of, shares)
    return Detected(candidates, first if is_other else None)


def _by_lingua(text: str, languages: frozenset[str]) -> dict[str, float]:
    """Returns the probability of each language; nothing where lingua does not know them all, or is not installed."""
    detector = _lingua(languages)
    told = detector.compute_language_confidence_values(text) if detector else []
    return {language_of(one.language.iso_code_639_1.name): one.value for one in told}


@cache
def _lingua(languages: frozenset[str]) -> LanguageDetector | None:
    try:
        import lingua
    except ImportError:
        return None
    names = ("NB" if code == "no" else code.upper() for code in languages)
    codes = [getattr(lingua.IsoCode639_1, name, None) for name in names]
    known = [code for code in codes if code is not None]
    has_choice = 1 < len(known) == len(languages)
    return lingua.LanguageDetectorBuilder.from_iso_codes_639_1(*known).build() if has_choice else None


def language_of(code: str) -> str:
    """Returns the language of a code, such as "en" for "en", "eng_Latn" and "en-GB"."""
    return _divided(code)[0]


def _divided(code: str) -> tuple[str, str]:
    """Returns the language of a code, and its script or region."""
    language, _, detail = code.lower().replace("-", "_").partition("_")
    return _SPELLED.get(language, language), detail


def is_meant(asked: str | None, code: str) -> bool:
    """Whether a client means a model's language: any if it asks for none; each script and region if it names none."""
    (language, detail), (its_language, its_detail) = _divided(asked or code), _divided(code)
    return language == its_language and (detail == its_detail or "" in (detail, its_detail))


def short_codes(codes: Iterable[str]) -> dict[str, str]:
    """Returns for each code its language, such as "en"; the code itself where a language has several scripts or
    regions."""
    divided = {code: _divided(code) for code in codes}
    detailed = Counter(language for language, detail in {*divided.values()} if detail)
    return {code: language if detailed[language] < 2 else code for code, (language, _) in divided.items()}


def _identifier() -> LanguageIdentifier:
    with _loading:
        return _loaded()


@cache
def _loaded() -> LanguageIdentifier:
    module = required("py3langid.langid", "serve", "detection of languages")
    found: LanguageIdentifier = module.LanguageIdentifier.from_model_file(module.MODEL_FILE, norm_probs=True)
    return found


class Choice(NamedTuple):
    """Which model translates a text.

    Args:
        model: the model.
        source, target: between which languages, as far as they are known.
        found: what the language of the text seems to be, and the probability, where the client did not tell it.
    """

    model: Hosted
    source: str | None
    target: str | None
    found: tuple[str, float] | None = None

    @property
    def engine(self) -> TranslationEngine:
        """What translates."""
        assert isinstance(self.model.engine, TranslationEngine)
        return self.model.engine

    @property
    def languages(self) -> tuple[str | None, str | None]:
        """What the model's engine is told: nothing if the model has one direction."""
        return (self.source, self.target) if len(self.model.pairs) > 1 else (None, None)


async def choices(
    service: Service, texts: Sequence[str], name: str | None, source: str | None, target: str | None
) -> list[Choice]:
    """Chooses the model of each text, whose language may differ from those of the others.

    Args:
        service: with the models.
        texts: what is to be translated.
        name: of a model; None for the one that fits the languages.
        source: their language; "auto" for what each seems to be, and None too where there are several.
        target: the language of the translations; None for a model that has but one.

    Raises:
        HTTPException: there is no such model.
        RequestError: no model translates between such languages.
    """
    is_asked, source = source == AUTO, None if source == AUTO else source
    models = [service.named(name, "translate")] if name else _translators(service)
    if len(models) == 1 and not models[0].pairs:
        return [_without_languages(models[0], source, target)] * len(texts)
    fitting = [
        (model, pair)
        for model in models
        for pair in model.pairs
        if is_meant(source, pair[0]) and is_meant(target, pair[1])
    ]
    fitting.sort(key=lambda found: (found[1][0] != source) + (found[1][1] != target))  # as it is spelled, if it is
    targets = {pair[1] for _, pair in fitting}
    if not fitting:
        known = ", ".join(f"{one}-{other}" for one, other in [*dict.fromkeys(service.pairs())][:MOST_TOLD])
        raise RequestError(f"expected languages that a model here translates between ({known}); received others")
    if target is None and len(targets) > 1:
        raise RequestError(
            f"expected the language of the translation ({', '.join(sorted(targets)[:MOST_TOLD])}): give target"
        )
    by_source = {pair[0]: Choice(model, *pair) for model, pair in reversed(fitting)}
    if source is not None or (len(by_source) == 1 and not is_asked):
        return [Choice(fitting[0][0], *fitting[0][1])] * len(texts)
    found = await asyncio.to_thread(detect_all, service, texts)
    return [_chosen(by_source, one) for one in found]


def _translators(service: Service) -> list[Hosted]:
    first = service.named(None, "translate")
    found = [model for model in service.host.models.values() if does(model, "translate")]
    return [first] if len(found) == 1 else [model for model in found if model.pairs]


def _without_languages(model: Hosted, source: str | None, target: str | None) -> Choice:
    if source is not None or target is not None:
        raise RequestError(
            f"the model {model.name} does not tell its languages: leave source and target out, or serve it as in "
            "en-de=FOLDER"
        )
    return Choice(model, None, None)


def _chosen(by_source: dict[str, Choice], found: Detected) -> Choice:
    """Chooses the likeliest source; or the only one, whatever the text is."""
    best = found.best(by_source) or (next(iter(by_source)), 0.0)
    if not best[1] and len(by_source) > 1:
        raise RequestError(
            f"the language of a text cannot be told among {', '.join([*by_source][:MOST_TOLD])}: give source"
        )
    return by_source[best[0]]._replace(found=best)


def detect_all(service: Service, texts: Sequence[str]) -> list[Detected]:
    """Returns what language each text seems to be in, among those that the models read and write."""
    languages = service.languages()
    most = max(MOST_DETECTED // max(len(texts), 1), LEAST_DETECTED)
    return [detected(text[:most], languages) for text in texts]


async def submitting(
    http: Request, inputs: Sequence[JSON], submit: Callable[[], Result], room: Room | None = None
) -> Result:
    """Submits work for a client, and notes how much; a thread reads what is long, so that nobody else waits for that.

    Raises:
        Refusal: texts have no room, which is clear before they are read, or see `submit`.
    """
    http.state.num_inputs, num_characters = len(inputs), sum(map(len, inputs))
    if room:
        room.require(num_characters // MOST_CHARACTERS, num_characters // USUAL_CHARACTERS)
    is_short = all(isinstance(one, str) for one in inputs) and num_characters <= MOST_AT_ONCE
    return submit() if is_short else await asyncio.to_thread(submit)


class Divided(Generic[Answer]):
    """Work that several models do for one client. It is a `wire.Work`."""

    def __init__(self, shares: Sequence[tuple[Work[Answer], Sequence[int]]]):
        self._shares = shares

    @classmethod
    def submit(cls, chosen: Sequence[Choice], submit: Callable[[Choice, list[int]], Work[Answer]]) -> Divided[Answer]:
        """Submits the texts of each choice together; `submit` takes their places. If one is refused, all are."""
        places: dict[tuple[str, str | None, str | None], list[int]] = {}
        for place, choice in enumerate(chosen):
            places.setdefault((choice.model.name, choice.source, choice.target), []).append(place)
        shares: list[tuple[Work[Answer], Sequence[int]]] = []
        try:
            for some in places.values():
                shares.append((submit(chosen[some[0]], some), some))
        except BaseException:
            cls(shares).cancel()
            raise
        return cls(shares)

    def cancel(self) -> None:
        """Ends all of it."""
        for work, _ in self._shares:
            work.cancel()

    async def answers(self) -> list[Answer]:
        """Returns the answers in the order of the texts."""
        by_place: dict[int, Answer] = {}
        for work, places in self._shares:
            by_place |= zip(places, await work.answers(), strict=True)
        return [by_place[place] for place in sorted(by_place)]

    async def parts(self) -> AsyncIterator[Part[Answer]]:
        """Yields the parts of one share after those of another."""
        for work, places in self._shares:
            async for part in work.parts():
                yield part._replace(text=places[part.text])
