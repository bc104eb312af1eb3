"""Makes GG104 findings from reasons, grouped by reason and module."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from pytest_gradguard.details import Details
from pytest_gradguard.findings import Finding, placed
from pytest_gradguard.gradients.reasons import Reason, in_number
from pytest_gradguard.runtime.kernel.callsite import Site
from pytest_gradguard.runtime.pitfalls.lost import gg104

_NAMES = 8
_GROUPS = 6


class Missing(NamedTuple):
    """One watched tensor without a (good) gradient."""

    name: str
    reason: Reason
    description: Details


def findings_of(
    missing: Iterable[Missing], names: Mapping[str, Reason | None], site: Site | None
) -> list[Finding]:
    """One finding for each reason, those with the most tensors first.

    Args:
        missing: the tensors without a (good) gradient.
        names: by name, the reason of every watched tensor; None if its gradient arrived.
        site: where the watch began: the location of findings without a better one.
    """
    groups: dict[Reason, list[Missing]] = {}
    for one in missing:
        groups.setdefault(one.reason, []).append(one)
    everything = list(names)
    ordered = sorted(groups.items(), key=lambda item: -len(item[1]))
    findings = [_finding(reason, members, everything, site) for reason, members in ordered]
    if len(findings) > _GROUPS:
        rest = [one for _, members in ordered[_GROUPS - 1 :] for one in members]
        kinds = len(ordered) - _GROUPS + 1
        findings[_GROUPS - 1 :] = [_rest(rest, kinds, everything, site)]
    lacking = {one.name for members in groups.values() for one in members}
    watched = {
        name: "arrived" if reason is None else "missing" if name in lacking else "allowed"
        for name, reason in names.items()
    }
    return [
        replace(placed(finding), details={**finding.details, "watched": watched})
        for finding in findings
    ]


def _finding(
    reason: Reason, members: list[Missing], everything: list[str], site: Site | None
) -> Finding:
    names = [one.name for one in members]
    many = len(names) > 1
    count = f" ({len(names)} of {len(everything)} watched)" if many else ""
    return gg104.finding(
        in_number(
            f"{rank_prefix()}{reason.head} {_uncounted(names, everything)}{count}: "
            f"{reason.text()}.",
            many=many,
        ),
        names,
        members[0].description,
        reason=reason.kind,
        site=reason.site or site,
        fix=in_number(reason.fix(), many=many),
        trace=reason.trace(),
    )


def _rest(members: list[Missing], kinds: int, everything: list[str], site: Site | None) -> Finding:
    names = [one.name for one in members]
    count = f"{len(names)} of {len(everything)} watched"
    return gg104.finding(
        f"{rank_prefix()}no gradient for {_uncounted(names, everything)} ({count}), for {kinds} "
        "more reasons; `why_no_grad(tensor)` gives each of them.",
        names,
        members[0].description,
        reason="several",
        site=site,
    )


def rank_prefix() -> str:
    """The prefix ``on rank 1: `` if there are several ranks."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return ""
    return f"on rank {distributed.get_rank()}: " if distributed.get_world_size() > 1 else ""


class _Node:
    """A module in the tree of dotted names."""

    def __init__(self) -> None:
        self.inner: dict[str, _Node] = {}
        self.total = 0
        self.missing = 0


def shown(names: list[str], everything: list[str]) -> str:
    """`names` in short: ``module.*`` for a module whose tensors are all among them."""
    if len(names) <= _NAMES:
        return _joined([f"`{name}`" for name in names])
    root = _Node()
    chosen = set(names)
    for name in everything:
        node = root
        node.total += 1
        node.missing += name in chosen
        for part in name.split("."):
            node = node.inner.setdefault(part, _Node())
            node.total += 1
            node.missing += name in chosen
    if root.missing == root.total:
        first = ", ".join(f"`{name}`" for name in everything[:3])
        return f"everything that is watched ({first} …)"
    parts = list(_patterns(root, ""))
    if len(parts) > _NAMES:
        parts = _alike(names)
    if len(parts) > _NAMES:
        more = len(parts) - _NAMES + 1
        parts = [*parts[: _NAMES - 1], f"{more} more"]
    return _joined(parts)


def _uncounted(names: list[str], everything: list[str]) -> str:
    """As `shown`, without a count at the end."""
    return shown(names, everything).removesuffix(f" ({len(names)})")


def _joined(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]


def _alike(names: list[str]) -> list[str]:
    """`names` with `*` for numbers, each pattern with its count."""
    counts: dict[str, list[str]] = {}
    for name in names:
        pattern = ".".join("*" if part.isdigit() else part for part in name.split("."))
        counts.setdefault(pattern, []).append(name)
    return [
        f"`{pattern}` ({len(fit)}, such as `{fit[0]}`)" if len(fit) > 1 else f"`{fit[0]}`"
        for pattern, fit in counts.items()
    ]


def _patterns(node: _Node, path: str) -> Iterator[str]:
    """Patterns of the missing tensors below `path`."""
    if node.missing == node.total and not node.inner:
        yield f"`{path}`"
    elif node.missing == node.total and node.total > 3:
        yield f"`{path}.*` ({node.total})"
    elif node.missing:
        for part, inner in node.inner.items():
            yield from _patterns(inner, f"{path}.{part}" if path else part)
