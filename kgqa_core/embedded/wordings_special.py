"""Wordings of questions with two topics and of true/false questions. See ``wordings`` for how to read them."""

from kgqa_core.embedded.graph import ACTED, DIRECTED, PLACE, YEAR
from kgqa_core.embedded.question_type import QuestionType

TWO_TOPICS = (
    QuestionType(
        "both-actors-films",
        (ACTED,),
        train=(
            "Which films bring [topic] and [topic] together on screen?",
            "In what do [topic] and [topic] act side by side?",
            "List the films that have both [topic] and [topic] in the cast.",
            "In what films do [topic] and [topic] both play?",
            "As actors, which films do [topic] and [topic] share?",
        ),
        dev=("Name the films in which [topic] plays next to [topic].",),
        test=(
            "Which movies feature [topic] as well as [topic]?",
            "In which pictures did both [topic] and [topic] have a part?",
        ),
    ),
    QuestionType(
        "both-films-cast",
        (f"~{ACTED}",),
        train=(
            "Which actors play in [topic] as well as in [topic]?",
            "Who is in the cast of both [topic] and [topic]?",
            "Name the performers that [topic] and [topic] have in common.",
            "Who had a role in [topic] and another one in [topic]?",
            "Which cast members link [topic] with [topic]?",
        ),
        dev=("Whom can I see acting both in [topic] and in [topic]?",),
        test=(
            "What actors do [topic] and [topic] share?",
            "Who appears on screen in each of the two films [topic] and [topic]?",
        ),
    ),
    QuestionType(
        "both-actors-directors",
        (ACTED, f"~{DIRECTED}"),
        train=(
            "Which directors have worked with [topic] as well as with [topic]?",
            "Who has directed films with [topic] and films with [topic]?",
            "List the directors for whom both [topic] and [topic] have acted.",
            "Which filmmakers gave roles to [topic] and to [topic]?",
            "Under which director have both [topic] and [topic] performed?",
        ),
        dev=("Name the directors who have cast [topic] and also [topic].",),
        test=(
            "Which directors do the actors [topic] and [topic] have in common?",
            "Who has had both [topic] and [topic] in front of the camera, as a director?",
        ),
    ),
)

TRUE_OR_FALSE = (
    QuestionType(
        "is-director",
        (f"~{DIRECTED}",),
        train=(
            "Did [claim] direct [topic]?",
            "Is it true that [topic] was directed by [claim]?",
            "True or false: [claim] is the director of [topic].",
            "Was [claim] really the one who directed [topic]?",
        ),
        dev=("Is [claim] the filmmaker who directed [topic]?",),
        test=("Was it [claim] who sat in the director's chair for [topic]?", "Is [topic] a work directed by [claim]?"),
    ),
    QuestionType(
        "is-in-cast",
        (f"~{ACTED}",),
        train=(
            "Does [claim] play in [topic]?",
            "Is it true that [claim] acts in [topic]?",
            "True or false: [claim] belongs to the cast of [topic].",
            "Can [claim] be seen as an actor in [topic]?",
        ),
        dev=("Is [claim] one of the performers in [topic]?",),
        test=("Did [claim] have a part in [topic], in front of the camera?", "Is [claim] among the actors of [topic]?"),
    ),
    QuestionType(
        "is-year",
        (YEAR,),
        train=(
            "Did [topic] premiere in [claim]?",
            "Is it true that [topic] first came to cinemas in [claim]?",
            "True or false: the premiere of [topic] was in [claim].",
            "Does [topic] date from the year [claim]?",
        ),
        dev=("Was [claim] the premiere year of [topic]?",),
        test=(
            "Was [topic] shown for the first time in [claim]?",
            "Is [claim] the year of the first screening of [topic]?",
        ),
    ),
    QuestionType(
        "is-place",
        (PLACE,),
        train=(
            "Was [topic] filmed in [claim]?",
            "Is it true that the crew of [topic] shot in [claim]?",
            "True or false: [claim] is a filming location of [topic].",
            "Did the cameras for [topic] roll in [claim]?",
        ),
        dev=("Is [claim] a spot where [topic] was shot?",),
        test=("Did the film team of [topic] travel to [claim] for the shoot?", "Was [claim] a location of [topic]?"),
    ),
    QuestionType(
        "has-directed-actor",
        (DIRECTED, f"~{ACTED}"),
        train=(
            "Has [claim] ever acted in a film directed by [topic]?",
            "Is it true that the director [topic] has cast [claim]?",
            "True or false: [claim] has played for the director [topic].",
            "Did [topic] ever direct the actor [claim]?",
        ),
        dev=("As a director, has [topic] worked with the performer [claim]?",),
        test=(
            "Is there a movie directed by [topic] with [claim] in the cast?",
            "Did [claim] ever take direction from [topic]?",
        ),
    ),
)
