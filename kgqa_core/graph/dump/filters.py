"""What a line of a dump is used for, by its relation: triple, name, alias, type or noise.

What published pre-processing of Freebase for question answering leaves out:

- NSM (He et al. 2021; its filter of FastRDFStore's dump, as later work reuses it) drops relations that contain
  music.release, authority.musicbrainz, 22-rdf-syntax-ns#type, book.isbn, common.licensed_object, tv.tv_series_episode,
  type.namespace, type.content, type.permission, type.object.key, type.object.permission, type.type.instance,
  topic_equivalent_webpage or dataworld.freeq, and keeps one language.
- ToG (Sun et al. 2024) drops type.object.type, type.object.name, what begins with common. or freebase., and sameAs.
  FRAG adds type.type. to these.

The default below is the administrative part of both: schema, keys, web pages, types and names of other vocabularies.
Relations that NSM drops only because they are large (music.release, book.isbn, tv.tv_series_episode) stay; add their
prefixes to drop them too. user. and base. relations stay in both, and here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kgqa_core.errors import InputError, shorten

Use = Literal["triple", "name", "alias", "type", "noise"]
USES: tuple[Use, ...] = ("triple", "name", "alias", "type", "noise")  # numbers in compiled code: places in this tuple
TRIPLE, NAME, ALIAS, TYPE, NOISE = range(len(USES))

NAMES = ("type.object.name",)
ALIASES = ("common.topic.alias",)
TYPES = ("type.object.type",)
NOISE_PREFIXES = (
    "common.",  # descriptions, images, web pages, notability
    "freebase.",  # hints for Freebase's own pages
    "type.",  # schema and keys; its names and types are used otherwise
    "key/",  # keys in other catalogues
    "dataworld.",  # provenance
    "http://www.w3.org/",  # rdf:type and rdfs:label say types and names once more; owl:sameAs, rdfs:domain and others
)


@dataclass(frozen=True, slots=True)
class DumpOptions:
    """What is kept of a dump. All of it decides the bytes that are written."""

    language: str = "en"  # of names, aliases and literals with a language tag; compared without case, as a whole
    names: tuple[str, ...] = NAMES  # relations whose literals are names
    aliases: tuple[str, ...] = ALIASES
    types: tuple[str, ...] = TYPES
    noise: tuple[str, ...] = NOISE_PREFIXES  # prefixes of relations that are left out; the three above go first
    types_as_triples: bool = False  # keep lines of ``types`` among the triples as well
    max_reject_ratio: float = 0.01  # malformed lines / lines that are not blank
    block_bytes: int = 4 * 2**20  # of plain text that are scanned at once; fits a processor's cache
    blocks_per_part: int = 256  # 1 GiB of plain text per part

    def __post_init__(self) -> None:
        if not self.language.isascii() or not self.language.replace("-", "").isalnum():
            raise InputError(f"language {shorten(self.language)} is no language tag; examples: en, de, pt-br")
        if self.block_bytes < 1 or self.blocks_per_part < 1:
            raise InputError(f"block_bytes {self.block_bytes} and blocks_per_part {self.blocks_per_part} must be >= 1")

    def use_of(self, relation: str) -> int:
        """Return what a relation's lines are used for, as a place in USES."""
        for use, relations in ((NAME, self.names), (ALIAS, self.aliases), (TYPE, self.types)):
            if relation in relations:
                return use
        return NOISE if relation.startswith(self.noise) else TRIPLE
