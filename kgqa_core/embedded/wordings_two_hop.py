"""Wordings of questions that two relations in a row answer. See ``wordings`` for how to read them."""

from kgqa_core.embedded.graph import ACTED, COMPOSED, DIRECTED, GENRE, LANGUAGE, PLACE, PRODUCED, WROTE, YEAR
from kgqa_core.embedded.question_type import QuestionType

TWO_HOP = (
    QuestionType(
        "director-actors",
        (DIRECTED, f"~{ACTED}"),
        train=(
            "Which actors has [topic] directed?",
            "Who has played in a film by the director [topic]?",
            "List the cast members of all films directed by [topic].",
            "With which performers did [topic] work as a director?",
            "Who stood in front of the camera for director [topic]?",
        ),
        dev=("Whom did the director [topic] cast in films?",),
        test=(
            "Which actresses and actors took direction from [topic]?",
            "Who acts in the movies that [topic] directed?",
        ),
    ),
    QuestionType(
        "actor-costars",
        (ACTED, f"~{ACTED}"),
        train=(
            "Who has shared the screen with [topic]?",
            "Which actors have played alongside [topic]?",
            "List the co-stars of [topic].",
            "With whom has [topic] acted together?",
            "Who else is in the cast of the films that [topic] plays in?",
        ),
        dev=("Name the acting partners of [topic].",),
        test=("Which fellow actors appeared in the same films as [topic]?", "Who performed next to [topic] in a film?"),
    ),
    QuestionType(
        "director-other-films",
        (f"~{DIRECTED}", DIRECTED),
        train=(
            "What else did the director of [topic] make?",
            "Which other films come from the person who directed [topic]?",
            "I liked the direction of [topic]: what other films has its director made?",
            "List further films by whoever directed [topic].",
            "Which films have their director in common with [topic]?",
        ),
        dev=("What other work has the director of [topic] directed?",),
        test=(
            "With which movies does [topic] share its director?",
            "Apart from [topic], what did its director direct?",
        ),
    ),
    QuestionType(
        "cast-other-films",
        (f"~{ACTED}", ACTED),
        train=(
            "What else have the actors of [topic] played in?",
            "In which other films can I see the cast of [topic]?",
            "Which films share an actor with [topic]?",
            "List further films with anyone from the cast of [topic].",
            "Where else do the performers of [topic] act?",
        ),
        dev=("Which other films feature people who acted in [topic]?",),
        test=(
            "What other movies have the stars of [topic] been in?",
            "Apart from [topic], which films did its actors appear in?",
        ),
    ),
    QuestionType(
        "director-genres",
        (DIRECTED, GENRE),
        train=(
            "In which genres has [topic] directed?",
            "What genres does the director [topic] make films of?",
            "Which genres do the films directed by [topic] belong to?",
            "In what genres is the director [topic] at home?",
            "Sort the films directed by [topic] by genre: which genres appear?",
        ),
        dev=("Name the genres of the films that [topic] directed.",),
        test=(
            "What types of movie, by genre, has [topic] made as a director?",
            "Which genres can be found in the directing work of [topic]?",
        ),
    ),
    QuestionType(
        "actor-years",
        (ACTED, YEAR),
        train=(
            "In which years did films with [topic] in the cast premiere?",
            "When did the films that [topic] acts in come to cinemas?",
            "What are the premiere years of the films [topic] played in?",
            "In what years could one see the actor [topic] in a new film?",
            "From which years are the films featuring the actor [topic]?",
        ),
        dev=("List the years in which a film starring [topic] opened.",),
        test=(
            "When were the movies with the performer [topic] first shown?",
            "Which years brought a new picture with [topic] as an actor?",
        ),
    ),
    QuestionType(
        "actor-directors",
        (ACTED, f"~{DIRECTED}"),
        train=(
            "Which directors has [topic] acted for?",
            "Under which directors has the actor [topic] worked?",
            "Who directed the films that [topic] plays in?",
            "List the directors who gave [topic] a role.",
            "Which filmmakers have had [topic] in their cast?",
        ),
        dev=("By which directors has the performer [topic] been cast?",),
        test=(
            "Which directors worked with the actor [topic]?",
            "Who was directing the movies in which [topic] appeared?",
        ),
    ),
    QuestionType(
        "composer-directors",
        (COMPOSED, f"~{DIRECTED}"),
        train=(
            "For which directors has [topic] composed music?",
            "Who directed the films that [topic] wrote the score for?",
            "Which directors turned to [topic] for the soundtrack?",
            "List the directors whose films have music by [topic].",
            "With which filmmakers has the composer [topic] worked?",
        ),
        dev=("Name the directors that the composer [topic] wrote film music for.",),
        test=(
            "Whose films, as a director, were scored by [topic]?",
            "Which directors chose [topic] as their composer?",
        ),
    ),
    QuestionType(
        "studio-places",
        (PRODUCED, PLACE),
        train=(
            "Where were the films of the studio [topic] shot?",
            "In which places has the company [topic] filmed?",
            "What locations appear in the productions of [topic]?",
            "List the filming locations of everything that [topic] produced.",
            "To which places did the studio [topic] send its film crews?",
        ),
        dev=("Name the locations where productions by [topic] were filmed.",),
        test=(
            "In what places did cameras roll for the production house [topic]?",
            "Where did the films produced by [topic] have their shoot?",
        ),
    ),
    QuestionType(
        "writer-languages",
        (WROTE, LANGUAGE),
        train=(
            "In which languages are the films written by [topic]?",
            "What languages are spoken in the films that [topic] wrote?",
            "The scripts of [topic] became films in which languages?",
            "List the languages of the films with a screenplay by [topic].",
            "What language do characters speak in films scripted by [topic]?",
        ),
        dev=("Which spoken languages occur in films from the writer [topic]?",),
        test=(
            "In what tongues do people talk in the films [topic] wrote the script for?",
            "Which languages does one hear in the screen stories of the scriptwriter [topic]?",
        ),
    ),
    QuestionType(
        "place-directors",
        (f"~{PLACE}", f"~{DIRECTED}"),
        train=(
            "Which directors have shot a film in [topic]?",
            "Who directed the films that were shot in [topic]?",
            "Which filmmakers came to [topic] to film?",
            "List the directors who used [topic] as a location.",
            "By whom were the films made in [topic] directed?",
        ),
        dev=("Name the directors that have worked on location in [topic].",),
        test=(
            "Which directors took their cameras to [topic]?",
            "Who was in charge, as director, of the movies filmed at [topic]?",
        ),
    ),
)
