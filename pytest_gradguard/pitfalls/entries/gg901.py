"""GG901: a comment silences a code that is not found there."""

from pytest_gradguard.pitfalls import Pitfall, Severity, links

PITFALL = Pitfall(
    code="GG901",
    name="unused-suppression",
    title="A comment silences a finding that is not there",
    severity=Severity.INFO,
    happens=(
        "The comment has no effect today. If the pitfall comes back on that line, for instance "
        "when somebody goes back to processes, the comment hides it."
    ),
    why=(
        "Comments such as `# noqa: GG101` stay in the source after the code that needed them has "
        "changed."
    ),
    fix=(
        "Remove the comment, or the code from its list. "
        "`gradguard lint --select GG901 --min-severity info --fix` does it for a whole project."
    ),
    bad="""\
import torch
from joblib import Parallel, delayed


def total(values):
    return values.sum().item()


x = torch.ones(3)
print(Parallel(n_jobs=2)(delayed(total)(x) for _ in range(2)))  # noqa: GG101
# prints: [3.0, 3.0]
""",
    good="""\
import torch
from joblib import Parallel, delayed


def total(values):
    return values.sum().item()


x = torch.ones(3)
print(Parallel(n_jobs=2)(delayed(total)(x) for _ in range(2)))  # prints: [3.0, 3.0]
""",
    lint=(
        "On each `# noqa: GG…` and `# gradguard: ignore` that silences nothing. Nothing is "
        "reported in a file whose programs were not followed to their end. A bare `# noqa` and "
        "other tools' codes are left alone."
    ),
    silence=(
        "It is hidden unless you ask for it. Check whole projects: a file alone does not show "
        "what a program in another folder does with its functions."
    ),
    links=(links.NOQA,),
)
