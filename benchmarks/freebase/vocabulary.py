"""The words of a made-up Freebase: domains, types, properties, names in eleven languages, literals."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Ints = npt.NDArray[np.int64]


def _words(text: str) -> list[str]:
    return text.split()


DOMAINS = _words("""
music film people location tv book award sports organization education media_common measurement_unit government
biology fictional_universe business computer cvg soccer american_football baseball basketball ice_hockey cricket
olympics medicine astronomy aviation military architecture geography travel food theater opera visual_art broadcast
transportation automotive boats rail spaceflight language religion royalty law influence event time internet finance
chemistry physics engineering digicams games chess comic_books comic_strips exhibitions library library_of_congress
meteorology projects protected_sites skiing symbols tennis venture_capital zoos martial_arts boxing bicycles
amusement_parks conferences interests fashion celebrities base.aareas base.popstra base.schemastaging base.biblioness
base.ontologies user.tsegaran
""")
THINGS = _words("""
person artist track release recording album performance character series episode season award nomination honor winner
team roster position player coach league match event venue city region country district building structure company
employment tenure degree school student department subject work edition publisher author translation genre style
medium format role crew producer director writer composer label contract product brand model engine route station
vehicle ship aircraft mission satellite body organism species gene disease drug treatment symptom dish ingredient
recipe game platform developer engine_version file_format software protocol website topic quotation speech law_case
judge party election office term appointment title dynasty battle conflict unit rank regiment religion deity festival
holiday calendar period language_family dialect script sculpture painting exhibition museum
""")
PROPERTIES = _words("""
name_of part_of contains contained_by created_by based_on located_in works member_of members follows followed_by
first_seen last_seen founded founders parent children sibling spouse place_of_birth place_of_death profession
nationality genre language country subjects performed_by performances produced_by distributed_by written_by edited
featured_in appears_in awards nominations released tracks length area population elevation date_begun date_ended from
to height weight number position owner owned_by operator manufacturer designed_by inspired_by adaptation influenced_by
influenced uses used_by similar category level notes source code series season episode role actor character team
league coach venue winner loser score rank title office jurisdiction party district capital
""")
LANGUAGES = ("de", "fr", "es", "it", "pt", "ru", "ja", "zh", "ar", "ko")  # beside English
_SCRIPTS = {
    "en": "ka lo mi ren ta vor sel ding ham bry ston wick ler mont fair ash holl grey thorn wood mar dell",
    "de": "schön burg wäl dorf müll groß stein bach hein rich ber lin fürst",
    "fr": "châ teau lé ri vière beau mont çon ève dupré gar nier",
    "es": "niño río gar cía lopez montaña san ta cruz ñez pérez",
    "it": "città perché fio ren tino mila rossi bello giù",
    "pt": "são joão rio ção pau lo costa silva praia",
    "ru": "мо сква ле нин град ива нов петр река город",
    "ja": "東 京 山 川 田 中 村 上 サ ト ウ の",
    "zh": "北 京 上 海 大 学 中 国 人 民 河 山",
    "ar": "مد ين ة ال قا هر كت اب",
    "ko": "서 울 한 국 김 이 박 산 강 대",
}
NUM_WORDS = 2048  # a language
_XSD = "http://www.w3.org/2001/XMLSchema#"
QUOTE = '"'


def zipf(count: int) -> npt.NDArray[np.float64]:
    """Return shares that fall with their rank and sum to one."""
    weights = 1.0 / np.arange(1, count + 1)
    shares: npt.NDArray[np.float64] = weights / weights.sum()
    return shares


def draw_words(language: str, generator: np.random.Generator) -> pa.Array:
    """Return the words of a language, capitalised as its script allows."""
    syllables = _SCRIPTS[language].split()
    longest = 3 if len(syllables[0]) > 1 else 4
    lengths = generator.integers(1, longest + 1, NUM_WORDS).tolist()
    drawn = generator.integers(0, len(syllables), (NUM_WORDS, longest)).tolist()
    words = ("".join(syllables[place] for place in row[:length]) for row, length in zip(drawn, lengths, strict=True))
    return pa.array([word.capitalize() for word in words], pa.string())


def type_labels(count: int, generator: np.random.Generator) -> list[str]:
    """Return distinct type labels as domain.type; the frequent ones are in the domains that come first."""
    labels = []
    for number in range(count):
        domain = DOMAINS[number % len(DOMAINS)]
        thing = THINGS[int(generator.integers(len(THINGS)))]
        labels.append(f"{domain}.{thing}_{number // len(DOMAINS)}" if number >= len(DOMAINS) else f"{domain}.{thing}")
    return labels


def property_labels(type_label: str, count: int, generator: np.random.Generator) -> list[str]:
    """Return distinct relations of a type as domain.type.property."""
    first = generator.permutation(len(PROPERTIES))[:count]
    return [f"{type_label}.{PROPERTIES[number]}" for number in first]


class Literals:
    """A pool of literals with Zipf use: their labels and their N-Triples forms, which are the labels with escapes.

    Years, dates, times, whole numbers, floats, booleans, codes, English phrases and phrases with characters that
    N-Triples escapes. The i-th value is the same for any size of the pool.
    """

    def __init__(self, count: int, seed: int) -> None:
        generator = np.random.default_rng([seed, 77])
        words = draw_words("en", generator).to_pylist()
        self.labels: list[str] = []
        self.forms: list[str] = []
        for kind, a, b, c in generator.integers(0, 1 << 20, (count, 4)).tolist():
            label, form = _literal(kind % 16, a, b, c, words)
            self.labels.append(f'"{label}"{form[form.rindex(QUOTE) + 1 :]}')
            self.forms.append(form)


def _literal(kind: int, a: int, b: int, c: int, words: list[str]) -> tuple[str, str]:
    if kind < 2:
        label = str(1700 + a % 330)
        return label, f'"{label}"^^<{_XSD}gYear>'
    if kind < 6:
        label = f"{1700 + a % 330}-{1 + b % 12:02d}-{1 + c % 28:02d}"
        return label, f'"{label}"^^<{_XSD}date>'
    if kind == 6:
        label = f"{1950 + a % 70}-{1 + b % 12:02d}-{1 + c % 28:02d}T{a % 24:02d}:{b % 60:02d}"
        return label, f'"{label}"^^<{_XSD}dateTime>'
    if kind < 10:
        label = str(a % (10 ** (1 + b % 6)))
        return label, f'"{label}"'
    if kind < 12:
        label = f"{a % 10_000}.{b % 1000}"
        return label, f'"{label}"' if c % 2 else f'"{label}"^^<{_XSD}float>'
    if kind == 12:
        label = f"{a:x}{b:x}-{c:x}"
        return label, f'"{label}"'
    phrase = " ".join(words[number % NUM_WORDS] for number in (a, b, c)[: 1 + a % 3])
    if kind == 13:
        return f'{phrase} "{a}"', f'"{phrase} \\"{a}\\""'
    if kind == 14:
        return f"{phrase}\\{a}\n\t\u00e9", f'"{phrase}\\\\{a}\\n\\t\\u00E9"'
    return phrase, f'"{phrase}"@en'


class Phrases:
    """The words of all languages, and names made of them."""

    def __init__(self, seed: int) -> None:
        generator = np.random.default_rng([seed, 33])
        self._words = pa.concat_arrays([draw_words(language, generator) for language in ("en", *LANGUAGES)])

    def labels(self, language: Ints, words: Ints, missing: npt.NDArray[np.bool_] | None = None) -> pa.Array:
        """Return names (n,) of words (n, 3), -1 for none; null where ``missing``."""
        rows = np.where(words < 0, -1, words + NUM_WORDS * language[:, None])
        columns = [self._words.take(pa.array(column, mask=column < 0)) for column in rows.T]
        joined = pc.binary_join_element_wise(*columns, " ", null_handling="skip")
        return joined if missing is None else pc.if_else(pa.array(missing), pa.scalar(None, pa.string()), joined)

    def english(self, words: Ints, separator: str) -> pa.Array:
        """Return three English words each for numbers (n, 3), any size."""
        columns = [self._words.take(pa.array(column % NUM_WORDS)) for column in words.T]
        return pc.binary_join_element_wise(*columns, separator)
