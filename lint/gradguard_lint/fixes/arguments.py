"""Add or remove an argument of a call, in the layout of the others."""

from __future__ import annotations

import libcst as cst

from gradguard_lint.fixes.changes import Unwritable

_SPACE = cst.SimpleWhitespace(" ")
_NONE = cst.SimpleWhitespace("")


def appended(call: cst.Call, name: str, value: cst.BaseExpression) -> cst.Call:
    """`call` with the keyword argument ``name=value`` appended."""
    equal = cst.AssignEqual(whitespace_before=_NONE, whitespace_after=_NONE)
    new = cst.Arg(value, keyword=cst.Name(name), equal=equal)
    if not call.args:
        return call.with_changes(args=[new])
    last = call.args[-1]
    if len(call.args) == 1 and isinstance(last.value, cst.GeneratorExp) and not last.value.lpar:
        raise Unwritable("a generator expression that is the only argument has no parentheses")
    between = _between(call)
    if isinstance(last.comma, cst.Comma):  # the new one gets a trailing comma as well
        end = last.comma.whitespace_after
        new = new.with_changes(comma=cst.Comma(whitespace_after=without_comments(end)))
    else:
        end = last.whitespace_after_arg
        new = new.with_changes(whitespace_after_arg=without_comments(end))
    comma = cst.Comma(whitespace_after=with_comments_of(end, between))
    last = last.with_changes(comma=comma, whitespace_after_arg=_NONE)
    return call.with_changes(args=[*call.args[:-1], last, new])


def without(call: cst.Call, name: str | int) -> cst.Call:
    """`call` without the keyword argument `name`, or the argument at that index."""
    names = [argument.keyword and argument.keyword.value for argument in call.args]
    if isinstance(name, str) and name not in names:
        raise Unwritable("the call has no such keyword")
    index = names.index(name) if isinstance(name, str) else name
    args = list(call.args)
    removed = args.pop(index)
    after = removed.whitespace_after_arg
    if isinstance(removed.comma, cst.Comma):
        after = removed.comma.whitespace_after
    is_last = index == len(args)
    if not index:
        before = call.whitespace_before_args
        kept = _joined(before, after, last=is_last)
        return call.with_changes(args=args, whitespace_before_args=kept)
    previous = args[index - 1]
    before = previous.comma.whitespace_after if isinstance(previous.comma, cst.Comma) else _NONE
    kept = _joined(before, after, last=is_last)
    if is_last and not isinstance(removed.comma, cst.Comma):
        previous = previous.with_changes(comma=cst.MaybeSentinel.DEFAULT, whitespace_after_arg=kept)
    else:
        previous = previous.with_changes(comma=cst.Comma(whitespace_after=kept))
    args[index - 1] = previous
    return call.with_changes(args=args)


def _joined(
    before: cst.BaseParenthesizableWhitespace,
    after: cst.BaseParenthesizableWhitespace,
    *,
    last: bool,
) -> cst.BaseParenthesizableWhitespace:
    """The whitespace in place of an argument between `before` and `after`: keeps all comments, and
    the trailing one on its line."""
    if not isinstance(after, cst.ParenthesizedWhitespace) or not _has_comment(after):
        return with_comments_of(before, after) if last else before
    if not isinstance(before, cst.ParenthesizedWhitespace):
        return after
    lines = [*before.empty_lines]
    if after.first_line.comment is not None:
        own = cst.EmptyLine(before.indent, before.last_line, after.first_line.comment)
        lines.append(own)
    return before.with_changes(
        empty_lines=[*lines, *after.empty_lines], indent=after.indent, last_line=after.last_line
    )


def _between(call: cst.Call) -> cst.BaseParenthesizableWhitespace:
    """The whitespace after the comma between two arguments of `call`."""
    for argument in call.args[:-1]:
        if isinstance(argument.comma, cst.Comma):
            return without_comments(argument.comma.whitespace_after)
    before = call.whitespace_before_args
    return without_comments(before) if isinstance(before, cst.ParenthesizedWhitespace) else _SPACE


def without_comments(
    space: cst.BaseParenthesizableWhitespace,
) -> cst.BaseParenthesizableWhitespace:
    """`space` without its comments."""
    if not isinstance(space, cst.ParenthesizedWhitespace):
        return space
    line = space.first_line.with_changes(comment=None, whitespace=_NONE)
    return space.with_changes(first_line=line, empty_lines=())


def with_comments_of(
    space: cst.BaseParenthesizableWhitespace, between: cst.BaseParenthesizableWhitespace
) -> cst.BaseParenthesizableWhitespace:
    """`between`, after the comments in `space`."""
    if not isinstance(space, cst.ParenthesizedWhitespace) or not _has_comment(space):
        return between
    if not isinstance(between, cst.ParenthesizedWhitespace):
        return space
    return space.with_changes(indent=between.indent, last_line=between.last_line)


def _has_comment(space: cst.BaseParenthesizableWhitespace) -> bool:
    return isinstance(space, cst.ParenthesizedWhitespace) and (
        space.first_line.comment is not None or any(line.comment for line in space.empty_lines)
    )
