"""The paper, reproduced: ``nghvi reproduce NAME``."""

from nghvi.paper.studies import (
    appendix_probit,
    asset_pricing,
    claims,
    controls,
    example1,
    example2,
    example3,
    last_table,
    month_term,
)
from nghvi.paper.studies.store import StudyError
from nghvi.paper.studies.study import Options, Study, reproduce

STUDIES = {
    study.name: study
    for study in (
        example1.STUDY,
        appendix_probit.STUDY,
        example2.STUDY_2A,
        example2.STUDY_2B,
        example3.STUDY,
        asset_pricing.STUDY,
        month_term.STUDY,
        last_table.STUDY,
        controls.STUDY,
        claims.STUDY,
    )
}

__all__ = ["STUDIES", "Options", "Study", "StudyError", "reproduce"]
