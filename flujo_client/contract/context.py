"""The context that a pipeline's steps share, and its stored form for code that does not need the live one: decoding a large one is slow.

It may contain anything that `flujo_client.serial` can carry: every attempt gets a snapshot inside its message, and works on that copy.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import cached_property
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from flujo_client.contract.commands import ExecutedCommandLog
from flujo_client.serial import Outline, Packed, Tree, decode, held_at, is_plain_key, items_of

TASK_FIELDS = ("is_background_task", "task_id", "parent_run_id", "background_error", "background_error_category")
"""The part of a context about a run in the background, which only that run has."""


class ContextState(Enum):
    """The status of a context's run."""

    RUNNING = "running"
    PAUSED = "paused"
    COMPLETED = "completed"
    FAILED = "failed"


class HumanInteraction(BaseModel):
    """One question to a person and its answer; `answer` is None where the question expired.

    `at` is when the answer was given, in unix seconds.
    """

    step: str
    question: str
    answer: Any = None
    actor: str | None = None
    note: str | None = None
    at: float | None = None


class ConversationTurn(BaseModel):
    """A message of the `assistant` or the `user`; `step` is the step whose output it is, None for a person's."""

    role: Literal["user", "assistant"]
    content: str
    step: str | None = None


class PipelineContext(BaseModel):
    """The context used when a run is given context data and its pipeline names no model.

    Unknown fields are retained; assignment is validated. `step_outputs` has every successful step's output by name, `import_artifacts`
    the inputs of nested pipelines. A state machine writes `current_state` and reads `next_state`. `scratchpad` is yours. `hitl_history`
    has the questions to people and their answers, `conversation_history` the turns of conversations, `command_log` the turns of agentic
    loops. While a question is open, `status` is paused and `pause_message` is its text. A background run has `is_background_task`,
    `task_id` (its id) and `parent_run_id`, and the reason why it failed in `background_error` and `background_error_category`.
    """

    model_config = ConfigDict(extra="allow", validate_assignment=True)

    run_id: str = ""
    initial_prompt: str = ""
    status: ContextState = ContextState.RUNNING
    call_count: int = 0
    step_outputs: dict[str, Any] = Field(default_factory=dict)
    import_artifacts: dict[str, Any] = Field(default_factory=dict)
    current_state: str | None = None
    next_state: str | None = None
    scratchpad: dict[str, Any] = Field(default_factory=dict)
    hitl_history: list[HumanInteraction] = Field(default_factory=list)
    command_log: list[ExecutedCommandLog] = Field(default_factory=list)
    conversation_history: list[Any] = Field(default_factory=list)
    pause_message: str | None = None
    is_background_task: bool = False
    task_id: str | None = None
    parent_run_id: str | None = None
    background_error: str | None = None
    background_error_category: str | None = None


OUTPUTS: Final = "step_outputs"
DEPTH_OF_OUTPUTS: Final = 2
"""The depth of step outputs in a context."""
_MODEL: Final = "model"


class StoredContext:
    """A context that no one has looked at; `resolve` finds the classes in it."""

    def __init__(self, packed: Packed, resolve: Callable[[str], Any]) -> None:
        self._packed, self._resolve = packed, resolve
        self._is_changed = self._is_shared = False

    def live(self) -> Any:
        """Return the context as it was given, a new one each time; raises SerializationError."""
        read = None if self._is_shared else self.__dict__.pop("_outline", None)  # what was parsed is not parsed again
        tree = self._packed.tree() if read is None or read.held else read.tree
        return decode(tree, resolve=self._resolve)

    @property
    def outline(self) -> Tree:
        """Return its tree, without what is in the middle of its largest lists."""
        return self._outline.tree

    def part(self, tree: Tree) -> Any:
        """Decode a part of it; one that is plain JSON is returned as it is."""
        return decode(tree, resolve=self._resolve)

    def items(self, field: str) -> list[Tree] | None:
        """Return the items of a list in stored form; None if the field is not a list."""
        found = self._list(field)
        return None if found is None else [item for each in found for item in self._whole(each)]

    def newest(self, field: str) -> list[Tree] | None:
        """Return the last items of a list in stored form, at least one if there are any; None if the field is not a list."""
        found = self._list(field)
        return None if found is None else [item for each in found[-1:] for item in self._whole(each)]

    def add_output(self, step: str, output: Tree) -> bool:
        """Add a step's output to `step_outputs`, if the context has that; return False if only the live context can say."""
        self._is_shared, fields = True, self._fields
        if fields is None:
            return False
        if OUTPUTS not in fields:
            return "x" not in self._outline.tree
        outputs = fields[OUTPUTS]
        if not isinstance(outputs, dict) or "$" in outputs or not is_plain_key(step):
            return False
        outputs[step] = output
        self._is_changed = True
        return True

    def add_item(self, field: str, item: Tree, kind: type) -> bool:
        """Append an item to a list, if the model takes it unseen: it declares a list of that class, and validates nothing itself."""
        items = self._list(field)
        if items is None or not _is_plain_list(self._resolve(self._outline.tree["c"]), field, kind):
            return False
        items.append(item)
        self._is_changed = True
        return True

    def packed(self) -> Packed:
        """Return the context with what was added."""
        if not self._is_changed:
            return self._packed
        return Packed.of(self._outline.tree, like=(self._packed,), held=self._outline.held)

    @cached_property
    def _outline(self) -> Outline:
        return self._packed.outline()

    @property
    def _fields(self) -> dict[str, Tree] | None:
        tree = self._outline.tree
        return tree["v"] if isinstance(tree, dict) and tree.get("$") == _MODEL else None

    def _list(self, field: str) -> list[Tree] | None:
        self._is_shared = True
        found = None if self._fields is None else self._fields.get(field)
        return found if isinstance(found, list) else None

    def _whole(self, item: Tree) -> list[Tree]:
        """Return an item of an outline, or the items that it is the placeholder of."""
        number = held_at(item)
        if number is None:
            return [item]
        return [each for fragment in self._outline.held[number] for each in items_of(fragment)]


def _is_plain_list(model: type[BaseModel], field: str, kind: type) -> bool:
    declared, own = model.model_fields.get(field), model.__pydantic_decorators__
    if declared is None or declared.metadata or declared.annotation != list[kind]:  # type: ignore[valid-type]
        return False
    return not (own.validators or own.field_validators or own.root_validators or own.model_validators)
