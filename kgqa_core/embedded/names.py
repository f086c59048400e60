"""Invented names: people, films, places, studios and languages, put together from syllables and words.

Several scripts and many diacritics, because names are where programs break. All names are in Unicode NFC.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable

from kgqa_core.embedded.draw import Draw

# (share in percent, syllables); a name stays within one flavour
FLAVOURS: tuple[tuple[int, tuple[str, ...]], ...] = (
    (34, ("ka", "lo", "mi", "ren", "tor", "va", "sel", "dri", "nu", "pel", "hal", "or", "im", "bas", "ven")),
    (22, ("wen", "ad", "bri", "col", "fa", "gar", "hem", "jo", "lin", "mor", "ned", "pri", "tam", "ul", "yes")),
    (12, ("bø", "skå", "rön", "vej", "ald", "ty", "hæl", "gri", "sør", "nå", "ulf", "ekk", "lin")),
    (12, ("žu", "ra", "švi", "lė", "ko", "čer", "ny", "dra", "jū", "mil", "pož", "ka", "řen")),
    (11, ("ré", "ña", "lou", "mar", "tí", "go", "bel", "zé", "co", "vâ", "dil", "çon", "pla")),
    (3, ("ва", "ле", "рон", "ки", "му", "са", "дор", "же", "ник", "тол")),
    (2, ("κα", "λη", "μον", "θε", "ρι", "σα", "ξε", "νο", "φι", "δα")),
    (2, ("カ", "ミ", "ロ", "ネ", "サ", "ト", "リ", "モ", "ク", "ヤ")),
    (2, ("가", "람", "소", "윤", "도", "빈", "하", "미", "누", "별")),
)
FIRST_OTHER_SCRIPT = 5  # flavours from here on are not Latin
ADJECTIVES = (
    "Crimson", "Bitter", "Borrowed", "Broken", "Copper", "Crooked", "Distant", "Drowned", "Empty", "Faithful", "Frozen",
    "Gentle", "Hidden", "Hollow", "Honest", "Idle", "Late", "Lonely", "Nameless", "Narrow", "Painted", "Patient",
    "Quiet", "Restless", "Rusty", "Salty", "Seventh", "Sleepless", "Stolen", "Tin", "Velvet", "Wandering", "Wooden",
)  # fmt: skip
NOUNS = (
    "Anchor", "Apple", "Baker", "Balloon", "Bell", "Bridge", "Candle", "Carpenter", "Clock", "Cloud", "Compass",
    "Corridor", "Ferry", "Fiddle", "Garden", "Ghost", "Harbour", "Heron", "Island", "Kettle", "Ladder", "Lantern",
    "Lighthouse", "Mirror", "Moth", "Orchard", "Parcel", "Pepper", "Pigeon", "Pilot", "Quarry", "Raincoat", "River",
    "Saddle", "Snowfall", "Staircase", "Summer", "Swimmer", "Tailor", "Tide", "Tram", "Umbrella", "Violin", "Window",
)  # fmt: skip
GENRES = (
    "family drama", "slapstick", "ghost story", "heist caper", "road trip tale", "courtroom drama", "costume epic",
    "space opera", "folk tale", "mountain adventure", "sports story", "spy story", "stage musical", "war chronicle",
    "animal fable", "detective story", "love story", "disaster epic", "satire", "puppet play", "documentary",
    "coming-of-age story",
)  # fmt: skip

PLACES = ("{}", "{}", "{}", "Port {}", "Lake {}", "Upper {}", "{} Valley", "Saint {}")
STUDIOS = ("{0} Pictures", "Studio {0}", "{1} & {2} Films", "{0} {1} Works", "{1} House {0}")
TITLES = (  # a pattern that stands here twice is twice as frequent
    *("The {adjective} {noun}",) * 9,
    *("{noun} and {other}",) * 3,
    *("{name}'s {noun}",) * 3,
    *("{long_name}",) * 2,
    "A {adjective} {noun}",
    "Two {noun}s",
    "One {noun} for {name}",
    "Another {noun} for {name}",
    "Winter over {place}",
    "Letters from {place}",
    "{place} by Night",
    "Beyond the {adjective} {noun}",
    "Under the {adjective} {noun}",
    "{name}: The {adjective} Years",
    "{noun} {year}",
    "Goodbye, {name}!",
    "Where to, {name}?",
    "No. {number}, {noun} Street",
)


class NameMaker:
    """Makes names that differ from each other even when case is ignored; homonyms are made on purpose, elsewhere."""

    def __init__(self, draw: Draw, taken: Iterable[str] = ()) -> None:
        """Draw from ``draw`` and never give a name in ``taken``."""
        self._draw = draw
        self._taken = {name.casefold() for name in taken}

    def people(self, count: int) -> list[str]:
        """Return ``count`` names of a given and a family name, some with a hyphen, an initial or an apostrophe."""
        return self._make(count, self._person)

    def places(self, count: int) -> list[str]:
        """Return ``count`` names of towns, lakes, ports and valleys."""
        return self._make(count, self._place)

    def studios(self, count: int) -> list[str]:
        """Return ``count`` names of film companies."""
        return self._make(count, self._studio)

    def languages(self, count: int) -> list[str]:
        """Return ``count`` names of languages."""
        return self._make(count, lambda: self._word(0, 2) + self._draw.pick(("ish", "ese", "ic", "ian")))

    def films(self, count: int, *, places: list[str]) -> list[str]:
        """Return ``count`` titles, a few of which contain one of ``places``, a year or punctuation."""
        return self._make(count, lambda: self._title(places))

    def _make(self, count: int, make: Callable[[], str]) -> list[str]:
        """Return ``count`` new names of ``make``."""
        names: list[str] = []
        while len(names) < count:
            name = unicodedata.normalize("NFC", make())
            if len(name) > 3 and name.casefold() not in self._taken:
                self._taken.add(name.casefold())
                names.append(name)
        return names

    def _flavour(self) -> int:
        """Return the number of a flavour, by share."""
        left = self._draw.below(100)
        for number, (share, _) in enumerate(FLAVOURS):
            left -= share
            if left < 0:
                return number
        raise AssertionError("the shares of FLAVOURS do not add up to 100")

    def _word(self, flavour: int, num_syllables: int) -> str:
        """Return one capitalised word of a flavour."""
        syllables = FLAVOURS[flavour][1]
        place = self._draw.below(len(syllables))
        word = syllables[place]
        for _ in range(num_syllables - 1):  # never the same syllable twice in a row
            place = (place + self._draw.between(1, len(syllables) - 1)) % len(syllables)
            word += syllables[place]
        return word.capitalize()

    def _person(self) -> str:
        """Return a full name."""
        flavour = self._flavour()
        given, family = self._word(flavour, 2), self._word(flavour, self._draw.between(2, 3))
        kind = self._draw.below(100)
        if kind < 5:
            given += f"-{self._word(flavour, 2)}"
        elif kind < 9 and flavour < FIRST_OTHER_SCRIPT:
            given += f" {self._draw.pick('ABDEGKLMNRSTV')}."
        elif kind < 12 and flavour < FIRST_OTHER_SCRIPT:
            family = f"D'{family}"
        return f"{given} {family}"

    def _place(self) -> str:
        """Return the name of a place."""
        word = self._word(self._flavour(), self._draw.between(2, 3))
        return self._draw.pick(PLACES).format(word)

    def _studio(self) -> str:
        """Return the name of a film company."""
        word, noun = self._word(self._flavour(), 2), self._draw.pick(NOUNS)
        return self._draw.pick(STUDIOS).format(word, noun, self._draw.pick(NOUNS))

    def _title(self, places: list[str]) -> str:
        """Return the title of a film."""
        draw, flavour = self._draw, self._flavour()
        if flavour >= FIRST_OTHER_SCRIPT:  # no English words beside it
            return f"{self._word(flavour, 3)} {self._word(flavour, 2)}"
        first = draw.below(len(NOUNS))
        second = (first + draw.between(1, len(NOUNS) - 1)) % len(NOUNS)
        return draw.pick(TITLES).format(
            adjective=draw.pick(ADJECTIVES),
            noun=NOUNS[first],
            other=NOUNS[second],
            name=self._word(flavour, 2),
            long_name=self._word(flavour, 3),
            place=draw.pick(places),
            year=draw.between(1961, 2022),
            number=draw.between(201, 999),
        )
