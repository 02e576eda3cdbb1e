"""Load a pipeline from a text or a file: read, check the shapes, inline the files that it names, build; or raise one `BlueprintError` with all faults.

The pipeline contains its own definition, `Pipeline.blueprint`: one text that includes the prompts and blueprints of other files, so that it
needs no other file. Workers load it without the rules, which they do not import. It must not read a file outside the blueprint's folder and the
working directory, nor a hidden one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path as File
from typing import Any, Final

from flujo_client.blueprint.build import build
from flujo_client.blueprint.finding import Path, refuse, shown
from flujo_client.blueprint.keys import DOCUMENT, VERSION
from flujo_client.blueprint.read import Source, dump, read
from flujo_client.blueprint.rules.document_index import DocumentIndex, agents_of
from flujo_client.blueprint.shapes import DocumentLocation, wrong
from flujo_client.contract.validation import Finding
from flujo_client.errors import BlueprintError, ConfigurationError, FlujoError
from flujo_client.expressions.templates import MAX_OUTPUT, compile_template
from flujo_client.pipeline.check import findings_of
from flujo_client.pipeline.pipeline import Pipeline
from flujo_client.pipeline.reference import CANVAS, is_file
from flujo_client.pipeline.schedule import Schedule
from flujo_client.sizes import MAX_BLUEPRINT_BYTES

MAX_IMPORTS: Final = 20
"""Blueprints that import each other in a row, from the first to the last."""

_OF_A_VOLUME: Final = re.compile(r"\.\.\d{4}_")
"""The prefix of the folders in which volumes of Kubernetes store the files behind the visible links."""


def load_text(
    text: str | bytes, *, allowed: Sequence[str], name: str | None = None, folder: File | None = None
) -> Pipeline:
    """Load a blueprint from YAML. `name` is the pipeline's name if the text has none; without a folder, the text cannot name files."""
    return Loading(tuple(allowed)).pipeline(text, file=name or "<text>", name=name, folder=folder)


def load_stored(text: str, *, allowed: Sequence[str]) -> Pipeline:
    """Load the text that travels with a run. The rules are not applied: a newer release's must stop no run that its client took."""
    return Loading(tuple(allowed), asks_rules=False).pipeline(text, file="<text>", name=None, folder=None)


def load_file(path: str | File, *, allowed: Sequence[str]) -> Pipeline:
    """Load a blueprint from a file, which gives the pipeline its name if the text does not."""
    file = File(path)
    text = bytes_of(file)
    return Loading(tuple(allowed)).pipeline(text, file=str(path), name=file.stem, folder=file.parent)


def schedules_of(path: str, *, allowed: Sequence[str]) -> list[Schedule]:
    """Read the schedules of a blueprint's file; raises ConfigurationError if it has none. The pipeline stored with runs leaves them out."""
    pipeline = load_file(path, allowed=allowed)
    declared = read(bytes_of(File(path)), file=path).data.get("schedules")
    if not declared:
        way_out = "add a key `schedules`, or give --cron or --every"
        raise ConfigurationError(f"'{path}' has no schedules", suggestion=way_out)
    return [Schedule(name=name, pipeline=pipeline, **given) for name, given in declared.items()]


def bytes_of(file: File) -> bytes:
    """Read a blueprint's file, and no more of it than it may have; raises BlueprintError."""
    text = _bytes(file, str(file))
    if isinstance(text, str):
        raise refuse(str(file), [Finding("Y-FILE", text, file=str(file))], code="UNKNOWN_REFERENCE")
    return text


def _bytes(file: File, named: str, most: int = MAX_BLUEPRINT_BYTES) -> bytes | str:
    """Read a file, and one byte more of it than there may be at most; a text says why not. A pipe would be waited for."""
    try:
        if file.exists() and not file.is_file():
            return f"'{shown(named)}' cannot be read: it is not a regular file"
        with file.open("rb") as opened:
            return opened.read(most + 1)
    except (OSError, ValueError) as error:
        return f"'{shown(named)}' cannot be read: {getattr(error, 'strerror', None) or type(error).__name__}"


@dataclass
class Loading:
    """A loader of one blueprint with all that it imports; it collects faults and reports them at the end."""

    allowed: tuple[str, ...]
    findings: list[Finding] = field(default_factory=list)
    size: int = 0
    """The number of bytes read from files so far, plus the characters that variables added to prompts."""
    asks_rules: bool = True
    """Whether rules are applied; shapes and the check always are."""

    def pipeline(self, text: str | bytes, *, file: str, name: str | None, folder: File | None) -> Pipeline:
        if isinstance(text, str) and text.startswith(CANVAS):
            from flujo_client.pipeline.canvas import load_canvas

            return load_canvas(text)
        source = read(text, file=file)
        document = self._document(source, _Origin(folder, ()))
        self._refuse(file)
        definition = "" if _is_larger(document) else dump({"version": VERSION, "name": name or "pipeline", **document})
        if not definition or len(definition.encode()) > MAX_BLUEPRINT_BYTES:
            message = f"it has more than {MAX_BLUEPRINT_BYTES:,} bytes, with its imports and what its aliases repeat"
            self.findings.append(Finding("Y-LIMIT", message, file=file))
            self._refuse(file)
        pipeline = replace(build(read(definition).data, allowed=self.allowed), blueprint=definition)
        found = findings_of(pipeline, allowed=self.allowed, has_context=pipeline.context_model is not None)
        if found:
            from flujo_client.blueprint.rules.apply import placed

            self.findings += placed(found, source, self.findings)
            self._refuse(file)
        return pipeline

    def _refuse(self, file: str) -> None:
        if any(each.severity == "error" for each in self.findings):
            raise refuse(file, self.findings)

    def _document(self, source: Source, origin: _Origin) -> dict[str, Any]:
        self.findings += wrong(DOCUMENT, source.data, DocumentLocation(source, (), self.allowed, source.data))
        if not isinstance(source.data, Mapping):
            return {}
        document = self._whole(source, source.data, (), origin)
        if self.asks_rules:
            from flujo_client.blueprint.rules.apply import apply_rules

            self.findings += apply_rules(source, document, allowed=self.allowed, is_part=bool(origin.above))
        return document

    def _whole(self, source: Source, data: Mapping[str, Any], path: Path, origin: _Origin) -> dict[str, Any]:
        """Return a document with its prompts and imports written out; it may be under the imports of another."""
        prompts = {
            (*place, "system_prompt"): self._prompt(source, agent["system_prompt"], (*place, "system_prompt"), origin)
            for place, agent in agents_of(DocumentIndex(data, path, None))
            if isinstance(agent.get("system_prompt"), Mapping)
        }
        document = {
            key: each if key == "imports" else _with(prompts, each, (*path, key))
            for key, each in data.items()
            if key != "schedules"  # no part of the pipeline
        }
        imports = data.get("imports")
        if isinstance(imports, Mapping):
            here = (*path, "imports")
            pairs = imports.items()
            document["imports"] = {name: self._import(source, each, (*here, name), origin) for name, each in pairs}
        return document

    def _import(self, source: Source, given: Any, path: Path, origin: _Origin) -> Any:
        if isinstance(given, Mapping):
            return self._whole(source, given, path, origin)
        if not isinstance(given, str) or not is_file(given):
            return given
        try:
            file = _file(source, given, path, origin)
            if file in origin.above or len(origin.above) >= MAX_IMPORTS:
                is_circle = file in origin.above
                why = "imports itself" if is_circle else f"is imported through more than {MAX_IMPORTS} files"
                raise _fault(source, "V-I3", path, f"'{shown(given)}' {why}")
            inner = read(self._read(source, file, given, path), file=_called(file))
        except BlueprintError as error:
            self.findings += (replace(each, rule="V-I1") if each.rule == "Y-FILE" else each for each in error.findings)
            return {}
        return {"name": file.stem, **self._document(inner, _Origin(file.parent, (*origin.above, file)))}

    def _prompt(self, source: Source, given: Mapping[str, Any], path: Path, origin: _Origin) -> str:
        named, variables = given.get("from_file"), given.get("variables")
        where = path if named is None else (*path, "from_file")
        try:
            text = given.get("text", "") if named is None else self._text(source, named, where, origin)
            if not isinstance(text, str) or not isinstance(variables, Mapping):
                return str(text)
            return self._filled_in(source, text, variables, where)
        except BlueprintError as error:
            self.findings += error.findings
            return ""

    def _filled_in(self, source: Source, text: str, variables: Mapping[str, Any], path: Path) -> str:
        names, most = tuple(map(str, variables)), min(MAX_OUTPUT, MAX_BLUEPRINT_BYTES - self.size)
        try:
            prompt = compile_template(text, undefined="strict", allowed=names).render(variables, limit=most)
        except FlujoError as error:
            raise _fault(source, "V-T1", path, error.message, allowed=error.suggestion) from None
        self.size += len(prompt)
        return prompt

    def _text(self, source: Source, named: Any, path: Path, origin: _Origin) -> str:
        data = self._read(source, _file(source, named, path, origin), named, path)
        try:
            return data.decode("utf-8-sig")
        except UnicodeDecodeError:
            raise _fault(source, "Y-FILE", path, f"'{shown(named)}' is not UTF-8") from None

    def _read(self, source: Source, file: File, named: str, path: Path) -> bytes:
        found = _bytes(file, named, MAX_BLUEPRINT_BYTES - self.size)
        if isinstance(found, bytes) and self.size + len(found) > MAX_BLUEPRINT_BYTES:
            found = f"with '{shown(named)}' it has more than {MAX_BLUEPRINT_BYTES:,} bytes"
        if isinstance(found, str):
            raise _fault(source, "Y-FILE", path, found)
        self.size += len(found)
        return found


def _fault(source: Source, rule: str, path: Path, message: str, **more: Any) -> BlueprintError:
    return BlueprintError(message, findings=(source.finding(rule, path, message, **more),))


def _file(source: Source, named: Any, path: Path, origin: _Origin) -> File:
    """Find a file; raises BlueprintError where it may not be read."""
    if not isinstance(named, str):
        raise BlueprintError("not the name of a file")  # its shape is reported
    if origin.folder is None:
        why = "a blueprint given as text has no folder, so it cannot name a file"
        raise _fault(source, "Y-FILE", path, f"{why}: write the content here, or load a file")
    try:
        file = (origin.folder / named).resolve()
    except (OSError, ValueError, RuntimeError):  # a NUL in it; a link that leads to itself
        raise _fault(source, "Y-FILE", path, f"'{shown(named)}' is not the path of a file") from None
    within = [file.relative_to(each) for each in (origin.folder.resolve(), File.cwd()) if file.is_relative_to(each)]
    if within and not all(map(_is_hidden, within)):
        return file
    hidden = "is hidden: blueprints do not read files or folders whose names begin with a dot"
    why = hidden if within else "is outside the blueprint's folder and the working directory"
    raise _fault(source, "Y-FILE", path, f"'{shown(named)}' {why}")


def _is_hidden(path: File) -> bool:
    """Return whether a part of a path is a dotfile or is in one, as `.env` and `.git` do."""
    return any(part.startswith(".") and not _OF_A_VOLUME.match(part) for part in path.parts)


def _called(file: File) -> str:
    """Return the name of an imported file in findings: its path from the working directory, as users see it."""
    here = File.cwd()
    return str(file.relative_to(here) if file.is_relative_to(here) else file)


@dataclass(frozen=True, slots=True)
class _Origin:
    """From where a document names files: its folder, and the files that import each other down to it."""

    folder: File | None
    above: tuple[File, ...]


def _with(prompts: Mapping[Path, str], value: Any, path: Path) -> Any:
    if path in prompts:
        return prompts[path]
    if isinstance(value, list):
        return [_with(prompts, each, (*path, index)) for index, each in enumerate(value)]
    if not isinstance(value, Mapping):
        return value
    return {key: _with(prompts, each, (*path, key)) for key, each in value.items()}


def _is_larger(document: Any) -> bool:
    """Return, before it is written, whether a document's texts alone are more than a blueprint may have: aliases repeat them."""
    size, row = 0, [document]
    while row and size <= MAX_BLUEPRINT_BYTES:
        value = row.pop()
        if isinstance(value, Mapping):
            row += [*value.keys(), *value.values()]
        elif isinstance(value, list):
            row += value
        size += len(value) if isinstance(value, str) else 1
    return size > MAX_BLUEPRINT_BYTES
