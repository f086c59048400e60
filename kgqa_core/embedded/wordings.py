"""The questions' wordings, as data: one entry per question type, with what may be asked in which split.

``[topic]`` and ``[claim]`` stand where a name is put in. The ``train`` wordings are asked in every split; those of
``dev`` and ``test`` occur nowhere else, so that a system has to understand them: a table of known sentences does not
help. A chain says how the graph answers: ``~`` walks a relation backwards.
"""

from __future__ import annotations

from kgqa_core.embedded.question_type import QuestionType
from kgqa_core.embedded.wordings_one_hop import ONE_HOP
from kgqa_core.embedded.wordings_special import TRUE_OR_FALSE, TWO_TOPICS
from kgqa_core.embedded.wordings_three_hop import THREE_HOP
from kgqa_core.embedded.wordings_two_hop import TWO_HOP

QUESTION_TYPES: tuple[QuestionType, ...] = ONE_HOP + TWO_HOP + THREE_HOP + TWO_TOPICS + TRUE_OR_FALSE
