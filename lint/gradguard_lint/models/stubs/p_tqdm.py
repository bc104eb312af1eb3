"""Maps over processes with a bar that shows how far they are."""

import multiprocessing

from gradguard_lint.models.primitives import each, hand_out


class _Processes(multiprocessing.BasePool):
    _library = "p_tqdm"
    _torch_pickles = False
    _forks = "call"
    _daemons = False


def p_map(fn, *iterables, **kwargs):
    return hand_out(_Processes(), each(fn, *iterables))


p_umap = p_imap = p_uimap = p_map
