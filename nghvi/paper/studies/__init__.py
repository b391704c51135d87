"""The paper, reproduced: ``nghvi reproduce NAME``."""

from nghvi.paper.studies import claims, example1, example2, example3, finance, probit, summary
from nghvi.paper.studies.run import reproduce
from nghvi.paper.studies.store import StudyError
from nghvi.paper.studies.study import Options, Study

STUDIES = {
    study.name: study
    for study in (
        example1.STUDY,
        probit.STUDY,
        example2.STUDY_2A,
        example2.STUDY_2B,
        example3.STUDY,
        finance.STUDY,
        summary.STUDY,
        claims.STUDY,
    )
}

__all__ = ["STUDIES", "Options", "Study", "StudyError", "reproduce"]
