"""What the relations of a source of RDF are for, by format. Nothing is imported here: settings and readers share it.

Freebase: ``noise`` is the administrative part of what NSM (He et al. 2021) and ToG (Sun et al. 2024) leave out;
relations that NSM drops only because they are large stay.

Wikidata: its truthy dump (https://www.mediawiki.org/wiki/Wikibase/Indexing/RDF_Dump_Format). An item is
``entity/Q5``, a statement's relation ``prop/direct/P31``, and the entity that has that property's name is
``entity/P31``: without their namespaces both are P31. Every other relation keeps its IRI and is noise: names given
twice more (skos:prefLabel, schema:name), descriptions, versions of pages, the ontology. A name that is the same in most
languages is given once, in the language ``mul``.
"""

from __future__ import annotations

from dataclasses import dataclass

SYNTAXES = (".nt", ".nq", ".ttl", ".trig", ".rdf", ".owl", ".xml")  # suffixes of RDF; .gz may stand behind
MID = r"[mg]\.[0-9_b-df-hj-np-tv-z]{1,11}"  # an id of Freebase: digits and consonants, which spell no word
_W3 = "http://www.w3.org/"


@dataclass(frozen=True, slots=True)
class Profile:
    """How RDF is read. Relations are given by label: an IRI without what ``namespaces`` leave out."""

    namespaces: tuple[str, ...] = ()  # starts of IRIs, the longest first, that labels leave out
    names: tuple[str, ...] = (f"{_W3}2000/01/rdf-schema#label",)  # relations whose literals are names
    aliases: tuple[str, ...] = (f"{_W3}2004/02/skos/core#altLabel",)
    types: tuple[str, ...] = (f"{_W3}1999/02/22-rdf-syntax-ns#type",)
    keep_types: bool = True  # are lines that say types triples as well?
    noise: tuple[str, ...] = ()  # prefixes of relations that are left out; names, aliases and types stay
    language: tuple[str, ...] = ("en",)  # of names, the best first; a tag counts as a whole, in any case
    keep_foreign: bool = True  # are literals in other languages nodes?
    names_relations: bool = True  # is a relation called as the node with its label, else by the words of its IRI?


FREEBASE = Profile(
    namespaces=("http://rdf.freebase.com/ns/", "http://rdf.freebase.com/"),  # the second of keys: key/wikipedia.en
    names=("type.object.name",),
    aliases=("common.topic.alias",),
    types=("type.object.type",),
    keep_types=False,
    noise=(
        "common.",  # descriptions, images, web pages, notability
        "freebase.",  # hints for Freebase's own pages
        "type.",  # schema and keys; its names and types are used otherwise
        "key/",  # keys in other catalogues
        "dataworld.",  # provenance
        _W3,  # rdf:type and rdfs:label say types and names once more; owl:sameAs, rdfs:domain and others
    ),
    keep_foreign=False,
    names_relations=False,  # as all published systems over Freebase: people.person.parents
)
WIKIDATA = Profile(
    namespaces=("http://www.wikidata.org/prop/direct/", "http://www.wikidata.org/entity/"),
    types=("P31",),
    noise=("http:", "https:"),
    language=("en", "mul", "en-gb", "en-ca"),
    keep_foreign=False,
)
RDF = Profile(language=("en", "en-us", "en-gb", "en-ca", "en-au"))
PROFILES = {"freebase": FREEBASE, "wikidata": WIKIDATA, "rdf": RDF}
USES = ("names", "aliases", "types")  # of relations, which a profile names


def label_of_iri(iri: str, profile: Profile = FREEBASE) -> str:
    """Return the label: the IRI without the first of the namespaces that leaves something of it, else whole."""
    return next((iri[len(one) :] for one in profile.namespaces if iri.startswith(one) and iri != one), iri)
