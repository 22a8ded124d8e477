"""Names the tasks that a run can learn. Each is a folder of `keras_transformer.tasks`, and a line in `TASKS`.

Keras is not imported. What a task's folder holds, by the names of its modules:

* `settings`: the class `Settings`, the flags of training.
* `training`: corpus, batches, loss, metrics and validation; see `training.task.TaskModule`.
* `pipeline`: what a user holds of a run, such as a translator: `load` and `imported`; see
  `decoding.pipelines.Pipeline`.
* `signature`: what its artefacts take and give, and how they are compared with the model: `SIGNATURES`; see
  `decoding.signatures.Signature`.
* `commands`: its verbs, `COMMANDS`, the main one first; see `commands.Command`. If imported models of the task become
  runs, `IMPORTING` too; see `commands.Importing`.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any, NamedTuple

from keras_transformer.core.errors import RequestError


class Task(NamedTuple):
    """A task.

    Args:
        package: its folder.
        help: what it learns, in a few words.
    """

    package: str
    help: str

    def module(self, name: str) -> ModuleType:
        """Imports a module of its folder."""
        return import_module(f"{self.package}.{name}")

    @property
    def settings(self) -> type[Any]:
        """The class of its settings."""
        settings: type[Any] = self.module("settings").Settings
        return settings

    @property
    def kind(self) -> str:
        """The kind of its model, a key of `model_spec.KINDS`."""
        return str(self.settings.kind)

    @property
    def commands(self) -> Mapping[str, Any]:
        """Its verbs, each a `commands.Command`."""
        commands: Mapping[str, Any] = self.module("commands").COMMANDS
        return commands

    def signature(self, keys: Container[str]) -> type[Any]:
        """The class of its artefacts' signature, for a run whose configuration has these keys."""
        signatures: tuple[type[Any], ...] = self.module("signature").SIGNATURES
        return next((one for one in signatures if one.mark is None or one.mark in keys), signatures[-1])


def _task(folder: str, help: str) -> Task:
    return Task(f"keras_transformer.tasks.{folder}", help)


TASKS = {
    "translation": _task("translation", "from parallel text"),
    "language-model": _task("language_modelling", "from text, or from pairs of a text and its answer"),
    "masked-tokens": _task("masked_tokens", "to fill masked places of text"),
    "classification": _task("classification", "from lines of a label, a tab and a text"),
    "next-item": _task("next_item", "what comes next in users' histories"),
    "images": _task("images", "from a folder of images for each label"),
}
DEFAULT_TASK = next(iter(TASKS))


def task_named(name: object, kind: str, keys: Container[str] = ()) -> str:
    """The task of a model, by the name that its folder says, if it says one; else by what the folder holds.

    Args:
        name: the name of the task; None in folders that were imported, or saved from Python.
        kind: the kind of the model.
        keys: the keys of the configuration. A task may have a `mark`, a key that all of its runs have.

    Raises:
        RequestError: nothing that was imported defines the task.
        ValueError: no task has such models.
    """
    if isinstance(name, str) and name not in TASKS:
        raise RequestError(
            f"received the task {name!r:.60}, which nothing here defines: import the module that adds the task to "
            "`keras_transformer.tasks.TASKS`, in a command by --import MODULE"
        )
    fitting = [task for task, its in TASKS.items() if its.kind == kind]
    marked = [task for task in fitting if TASKS[task].settings.mark in keys]
    plain = [task for task in fitting if TASKS[task].settings.mark is None]
    for task in [*[task for task in fitting if task == name], *marked, *plain]:
        return task
    raise ValueError(f"expected a model of a kind that a task has; received {kind!r:.60}")
