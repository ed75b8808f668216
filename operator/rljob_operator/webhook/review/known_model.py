"""What a common model does not allow, known before anything is downloaded: nine heads on two GPUs."""

from rljob_api import hub
from rljob_api.errors import ManifestError, Problem
from rljob_api.sections import Spec
from rljob_api.sizing.known_models import KNOWN, ON_THE_HUB
from rljob_api.sizing.misfits import misfits
from rljob_api.sizing.model_shape import shape


def problems(spec: Spec) -> tuple[Problem, ...]:
    """Return where a valid spec asks for more than its model can give; none for a model whose sizes are not known.

    A branch, tag or commit that is named may have other sizes, and is looked at when it is downloaded.
    """
    config = KNOWN.get(spec.model.checkpoint)
    wanted = hub.model(spec.model.checkpoint)
    if config is None and wanted is not None and wanted.revision == hub.NEWEST:
        config = ON_THE_HUB.get(wanted.repo)
    if config is None:
        return ()
    try:
        return misfits(shape(config), spec)
    except ManifestError as error:
        return error.problems
