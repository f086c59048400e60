"""Wordings of questions that three relations in a row answer. See ``wordings`` for how to read them."""

from kgqa_core.embedded.graph import ACTED, COMPOSED, DIRECTED, GENRE, LANGUAGE, PRODUCED, WROTE, YEAR
from kgqa_core.embedded.question_type import QuestionType

THREE_HOP = (
    QuestionType(
        "director-other-actors",
        (f"~{DIRECTED}", DIRECTED, f"~{ACTED}"),
        train=(
            "Who acts in the other films by the director of [topic]?",
            "Which actors has the director of [topic] worked with elsewhere?",
            "List the cast of every other film that the director of [topic] made.",
            "Which performers appear in films that have the same director as [topic]?",
            "About the person who directed [topic]: who plays in that director's other films?",
        ),
        dev=("Who was cast in further films of the one who directed [topic]?",),
        test=(
            "Which actors and actresses star in films that share their director with [topic]?",
            "On other sets, who performed for the director of [topic]?",
        ),
    ),
    QuestionType(
        "writer-other-years",
        (f"~{WROTE}", WROTE, YEAR),
        train=(
            "In which years did the other films by the writer of [topic] premiere?",
            "When did other films come out whose script is from the writer of [topic]?",
            "What are the premiere years of further films written by the writers of [topic]?",
            "The writers of [topic] also wrote other films: from which years are they?",
            "List the years of the films that share a scriptwriter with [topic].",
        ),
        dev=("When did other scripts by the author of [topic] reach the cinema?",),
        test=(
            "When were other movies penned by the screenwriters of [topic] first shown?",
            "Which years saw the premiere of another film from the pen behind [topic]?",
        ),
    ),
    QuestionType(
        "cast-other-genres",
        (f"~{ACTED}", ACTED, GENRE),
        train=(
            "In which genres have the actors of [topic] played elsewhere?",
            "What genres do the other films with the cast of [topic] belong to?",
            "The actors of [topic] also appear in other films: of which genres?",
            "List the genres of films that share an actor with [topic].",
            "Which genres do the performers of [topic] play in otherwise?",
        ),
        dev=("To which genres do the other films of the cast of [topic] belong?",),
        test=(
            "Which genres can be found among other movies with the stars of [topic]?",
            "By genre, what other types of picture do the actors of [topic] appear in?",
        ),
    ),
    QuestionType(
        "composer-other-studios",
        (f"~{COMPOSED}", COMPOSED, f"~{PRODUCED}"),
        train=(
            "Which studios produced other films with music by the composer of [topic]?",
            "For which companies has the composer of [topic] also written scores?",
            "Who produced the other films scored by the composer of [topic]?",
            "List the production companies of films that share a composer with [topic].",
            "The composer of [topic] wrote for other films: which studios made them?",
        ),
        dev=("Name the studios behind further films set to music by the composer of [topic].",),
        test=(
            "What production houses made further movies with a soundtrack by the composer of [topic]?",
            "Which film studios have other productions with music from the composer of [topic]?",
        ),
    ),
    QuestionType(
        "director-other-languages",
        (f"~{DIRECTED}", DIRECTED, LANGUAGE),
        train=(
            "In which languages are the other films by the director of [topic]?",
            "What languages has the director of [topic] used in other films?",
            "Which languages are spoken in films that have the same director as [topic]?",
            "List the languages of everything else that the director of [topic] made.",
            "The person who directed [topic] made other films too: in what language?",
        ),
        dev=("Which spoken languages occur in further work of the director of [topic]?",),
        test=(
            "In what tongues do people talk in other movies by the director of [topic]?",
            "What language would I hear in the remaining films of whoever directed [topic]?",
        ),
    ),
    QuestionType(
        "actor-directors-films",
        (ACTED, f"~{DIRECTED}", DIRECTED),
        train=(
            "Which films were made by directors who have worked with the actor [topic]?",
            "What have the directors that [topic] acted for directed?",
            "List the films of every director who gave [topic] a role.",
            "What did the directors who cast [topic] make?",
            "Show me all films by the filmmakers under whom [topic] has acted.",
        ),
        dev=("What is in the filmographies of the directors of the performer [topic]?",),
        test=(
            "Which movies were directed by someone who once directed [topic] as an actor?",
            "What can I watch by the directors that have had [topic] in the cast?",
        ),
    ),
)
