"""From a text or a file to a pipeline: read, ask the shapes, put what it names by file into it, build.

What comes out holds its own definition, `Pipeline.blueprint`: one text, with the prompts and blueprints of other files in it, so that
whoever has it needs no file. It must not read a file outside the blueprint's folder and the working directory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path as File
from typing import TYPE_CHECKING, Any, Final

from flujo_client.blueprint.build import build
from flujo_client.blueprint.finding import Finding, refuse, shown
from flujo_client.blueprint.keys import DOCUMENT, VERSION
from flujo_client.blueprint.read import MAX_BYTES, Source, read
from flujo_client.blueprint.shapes import Spot, wrong
from flujo_client.blueprint.where import where
from flujo_client.blueprint.write import dump
from flujo_client.errors import BlueprintError, FlujoError
from flujo_client.pipeline.check import findings_of
from flujo_client.pipeline.reference import is_file
from flujo_client.text.templates import compile_template

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flujo_client.blueprint.finding import Path
    from flujo_client.pipeline.compose import Pipeline

NO_NAME: Final = "pipeline"
"""What runs are listed under where neither the text nor a file gives a name."""

MAX_IMPORTS: Final = 20
"""Blueprints that import each other in a row, from the first to the last."""


def load_text(
    text: str | bytes, *, allowed: Sequence[str], name: str | None = None, folder: File | None = None
) -> Pipeline:
    """Load a blueprint from a text.

    Args:
        text: YAML.
        allowed: import prefixes that its references may stand under.
        name: what the pipeline is called if the text does not say.
        folder: from where files are named; without one, none can be.

    Raises:
        BlueprintError: everything that is wrong with it.
    """
    return _Loading(tuple(allowed)).pipeline(text, file=name or "<text>", name=name, folder=folder)


def load_file(path: str | File, *, allowed: Sequence[str]) -> Pipeline:
    """Load a blueprint from a file, which gives the pipeline its name if the text does not.

    Raises:
        BlueprintError: it cannot be read, or everything that is wrong with it.
    """
    file = File(path)
    text = _bytes(file)
    if isinstance(text, str):
        raise refuse(str(path), [Finding("Y-FILE", text, file=str(path))])
    return _Loading(tuple(allowed)).pipeline(text, file=str(path), name=file.stem, folder=file.parent)


def _bytes(file: File) -> bytes | str:
    """Read a file, and no more of it than a blueprint may have; a text says why not."""
    try:
        with file.open("rb") as opened:
            return opened.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        return f"'{shown(file)}' cannot be read: {getattr(error, 'strerror', None) or type(error).__name__}"


@dataclass
class _Loading:
    """The loading of one blueprint with all that it imports; what is wrong is noted, and told at the end."""

    allowed: tuple[str, ...]
    findings: list[Finding] = field(default_factory=list)
    size: int = 0

    def pipeline(self, text: str | bytes, *, file: str, name: str | None, folder: File | None) -> Pipeline:
        source = read(text, file=file)
        document = self._document(source, _Origin(folder, ()))
        self._refuse(file)
        definition = dump({"version": VERSION, "name": name or NO_NAME, **document})
        if len(definition.encode()) > MAX_BYTES:
            told = f"with what it imports it has more than {MAX_BYTES:,} bytes"
            self.findings.append(Finding("Y-LIMIT", told, file=file))
            self._refuse(file)
        pipeline = replace(build(read(definition).data, allowed=self.allowed), blueprint=definition)
        self.findings += [
            source.finding("Y-PIPELINE", where(source.data, each.path or ""), each.text)
            for each in findings_of(pipeline, allowed=self.allowed, has_context=pipeline.context_model is not None)
        ]
        self._refuse(file)
        return pipeline

    def _refuse(self, file: str) -> None:
        if any(each.severity == "error" for each in self.findings):
            raise refuse(file, self.findings)

    def _document(self, source: Source, origin: _Origin) -> dict[str, Any]:
        """Give a blueprint with all in it that it names by file."""
        self.findings += wrong(DOCUMENT, source.data, Spot(source, (), self.allowed, source.data))
        if not isinstance(source.data, Mapping):
            return {}
        document: dict[str, Any] = self._with_prompts(source, source.data, (), origin)
        imports = source.data.get("imports")
        if isinstance(imports, Mapping):
            document["imports"] = {
                name: self._imported(source, name, origin) if isinstance(given, str) and is_file(given) else given
                for name, given in imports.items()
            }
        return document

    def _with_prompts(self, source: Source, value: Any, path: Path, origin: _Origin) -> Any:
        """Give a value with the prompts in it written out."""
        if isinstance(value, list):
            return [self._with_prompts(source, each, (*path, index), origin) for index, each in enumerate(value)]
        if not isinstance(value, Mapping):
            return value
        return {
            key: each
            if key in _YOURS
            else self._prompt(source, each, (*path, key), origin)
            if key == "system_prompt" and isinstance(each, Mapping)
            else self._with_prompts(source, each, (*path, key), origin)
            for key, each in value.items()
        }

    def _prompt(self, source: Source, given: Mapping[str, Any], path: Path, origin: _Origin) -> str:
        named, variables = given.get("from_file"), given.get("variables")
        where = path if named is None else (*path, "from_file")
        text = given.get("text", "") if named is None else self._text(source, named, where, origin)
        if not isinstance(text, str) or not isinstance(variables, Mapping):
            return str(text)
        try:
            return compile_template(text, undefined="strict", allowed=tuple(map(str, variables))).render(variables)
        except FlujoError as error:
            self.findings.append(source.finding("Y-PROMPT", where, error.message, allowed=error.suggestion))
            return ""

    def _text(self, source: Source, named: Any, path: Path, origin: _Origin) -> str:
        file = self._file(source, named, path, origin)
        found = None if file is None else self._read(source, file, path)
        if found is None:
            return ""
        try:
            return found.decode("utf-8-sig")
        except UnicodeDecodeError:
            self.findings.append(source.finding("Y-FILE", path, f"'{shown(named)}' is no UTF-8"))
            return ""

    def _imported(self, source: Source, name: Any, origin: _Origin) -> dict[str, Any]:
        path: Path = ("imports", name)
        file = self._file(source, source.data["imports"][name], path, origin)
        if file is None:
            return {}
        if file in origin.above or len(origin.above) >= MAX_IMPORTS:
            told = (
                "imports itself" if file in origin.above else f"is the end of more than {MAX_IMPORTS} imports in a row"
            )
            self.findings.append(source.finding("Y-IMPORT", path, f"'{shown(file.name)}' {told}"))
            return {}
        text = self._read(source, file, path)
        if text is None:
            return {}
        try:
            inner = read(text, file=str(file))
        except BlueprintError as error:
            self.findings += error.findings
            return {}
        return {"name": file.stem, **self._document(inner, _Origin(file.parent, (*origin.above, file)))}

    def _file(self, source: Source, named: Any, path: Path, origin: _Origin) -> File | None:
        """Find a file; None, and a finding, where it may not be read."""
        if not isinstance(named, str):
            return None
        if origin.folder is None:
            told = "a text stands in no folder, so it can name no file: write it out here, or load a file"
            self.findings.append(source.finding("Y-FILE", path, told))
            return None
        file = (origin.folder / named).resolve()
        if not any(file.is_relative_to(each.resolve()) for each in (origin.folder, File())):
            told = f"'{shown(named)}' lies outside the blueprint's folder and the working directory"
            self.findings.append(source.finding("Y-FILE", path, told))
            return None
        return file

    def _read(self, source: Source, file: File, path: Path) -> bytes | None:
        found = _bytes(file)
        if isinstance(found, bytes) and self.size + len(found) > MAX_BYTES:
            found = f"with '{shown(file.name)}' it has more than {MAX_BYTES:,} bytes"
        if isinstance(found, str):
            self.findings.append(source.finding("Y-FILE", path, found))
            return None
        self.size += len(found)
        return found


@dataclass(frozen=True, slots=True)
class _Origin:
    """From where a document names files: its folder, and the files that import each other down to it."""

    folder: File | None
    above: tuple[File, ...]


_YOURS: Final = ("meta", "imports")
"""Keys under which no prompt of this document stands."""
