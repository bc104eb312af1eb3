"""The configuration of each file: the nearest one, or the one given on the command line."""

from __future__ import annotations

import os
from collections.abc import Sequence

from gradguard_lint.project.files import Trouble
from gradguard_lint.project.patterns import compile_patterns, matches
from pytest_gradguard.records import replace
from pytest_gradguard.settings import Settings, SettingsError, in_folder

TYPE_CHECKING = False  # as typing's own, without the cost of importing typing
if TYPE_CHECKING:
    from gradguard_lint.project.patterns import Verdict


_OPTION = "--exclude"
"""The path of the command line's patterns in messages."""


class Configuration:
    """One configuration table, with its patterns compiled.

    Attributes:
        settings: the table.
        path: its file.
        unusable: its errors, one line each.
        broken: whether it is unusable, so that its files can't be checked.
    """

    def __init__(self, settings: Settings, path: str = "", *, broken: bool = False) -> None:
        self.settings = settings
        self.path = path
        self.broken = broken
        self.unusable: list[str] = []
        self._within: dict[str, Verdict | None] = {}
        self._exclude = self._compiled(settings.exclude, "exclude")
        self._per_file = [
            (self._compiled((pattern,), "per-file-ignores"), codes)
            for pattern, codes in settings.per_file_ignores
        ]

    def _compiled(self, patterns: tuple[str, ...], key: str) -> Verdict | None:
        if not patterns:
            return None
        spec, unusable = compile_patterns(patterns)
        self.unusable += [f"{key}: the pattern {text!r} cannot be used" for text in unusable]
        return spec

    def excludes(self, path: str, named: str | None = None) -> bool:
        """Whether `exclude` matches `path`, or a folder around it.

        Args:
            path: an absolute path.
            named: the folder given by the user; patterns that exclude all of it don't count.
        """
        if self._exclude is None:
            return False
        if named is not None:
            return matches(self._spec_within(named), path, self.settings.root)
        return matches(self._exclude, path, self.settings.root)

    def _spec_within(self, named: str) -> Verdict | None:
        if named not in self._within:
            spec = self._exclude
            if matches(spec, named, self.settings.root):
                spec, _ = compile_patterns(
                    [
                        pattern
                        for pattern in self.settings.exclude
                        if not matches(compile_patterns([pattern])[0], named, self.settings.root)
                    ]
                )
            self._within[named] = spec
        return self._within[named]

    def ignored_in(self, path: str) -> list[str]:
        """The codes and prefixes that `per-file-ignores` disables in `path`."""
        return [
            selector
            for spec, selectors in self._per_file
            if matches(spec, path, self.settings.root)
            for selector in selectors
        ]


class Configurations:
    """The configurations of one run.

    Attributes:
        errors: their errors, each once.
    """

    def __init__(
        self, path: str | None = None, settings: Settings | None = None, exclude: Sequence[str] = ()
    ) -> None:
        """Search upwards from each file, or use the `settings` of the file at `path`.

        Args:
            path: a file given by the user.
            settings: its content.
            exclude: patterns of the command line, relative to the current folder.
        """
        here = os.getcwd()
        self.errors: list[Trouble] = []
        self._known: dict[str, Configuration] = {}
        self._named: dict[str, Configuration] = {}
        """By folder, as written."""
        self._one = settings is not None
        self._default = self._checked(settings or Settings(root=here), path or "")
        self._command_line = self._checked(Settings(exclude=tuple(exclude), root=here), _OPTION)

    def _with_usable_stubs(self, settings: Settings, path: str) -> Settings:
        """`settings` without unusable stub folders."""
        from gradguard_lint.models.own_stubs import StubError, rows_of_folder

        usable = []
        for folder in settings.stub_folders():
            try:
                rows_of_folder(folder)
                usable.append(folder)
            except StubError as error:
                self.errors.append(Trouble(path, 0, str(error)))
        return replace(settings, stubs=tuple(usable))

    def _checked(self, settings: Settings, path: str) -> Configuration:
        if settings.stubs:
            settings = self._with_usable_stubs(settings, path)
        configuration = Configuration(settings, path)
        if path == _OPTION:
            said = [text.replace("exclude", _OPTION, 1) for text in configuration.unusable]
            self.errors += [Trouble(path, 0, text) for text in said]
        else:
            self.errors += [Trouble(path, 1, text, whole=True) for text in configuration.unusable]
        return configuration

    def of(self, path: str) -> Configuration:
        """The configuration of the file at `path`."""
        folder = os.path.dirname(path)
        known = self._named.get(folder)
        if known is None:
            known = self._named[folder] = self.at(os.path.abspath(folder))
        return known

    def at(self, folder: str) -> Configuration:
        """The configuration of the files in `folder`, an absolute path."""
        if self._one:
            return self._default
        passed = []
        found: Configuration | None = None
        while folder not in self._known:
            passed.append(folder)
            found = self._in(folder)
            parent = os.path.dirname(folder)
            if found is not None or parent == folder:
                break
            folder = parent
        configuration = found or self._known.get(folder, self._default)
        for below in passed:
            self._known[below] = configuration
        return configuration

    def _in(self, folder: str) -> Configuration | None:
        path = os.path.join(folder, "pyproject.toml")
        try:
            settings = in_folder(folder)
        except SettingsError as error:
            self.errors.append(Trouble(path, 0, str(error)))
            return Configuration(Settings(root=folder), path, broken=True)
        return None if settings is None else self._checked(settings, path)

    def excludes(self, path: str, named: str | None = None) -> bool:
        """Whether the command line, or a configuration of or above `path`, excludes it.

        Args:
            path: an absolute path.
            named: as for `Configuration.excludes`.
        """
        if self._command_line.excludes(path, named):
            return True
        folder = os.path.dirname(path)
        while True:
            configuration = self.at(folder)
            if configuration.excludes(path, named):
                return True
            if configuration is self._default:
                return False
            path = configuration.settings.root
            folder = os.path.dirname(path)
            if folder == path:
                return False
