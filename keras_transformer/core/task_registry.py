"""Names the tasks that a run can learn. Each is a folder of `keras_transformer.tasks`, and a line in `TASKS`.

Keras is not imported. What a task's folder holds, by the names of its modules:

* `settings`: the class `Settings`, the flags of training. Help of the other commands does not import it.
* `training`: the class `Training`: corpus, batches, and what differs from the usual loss, metrics and validation; a
  `training.task.TaskTraining`.
* `pipeline`: the class of what a user holds of a run, such as a translator: `PIPELINE`, a
  `decoding.pipelines.Pipeline`.
* `signature`: what its artefacts take and give, and how they are compared with the model: `SIGNATURES`; see
  `checking.signatures.Signature`.
* `commands`: its commands by their names, `COMMANDS`, the main one first; see `commands.command.Command`. If imported
  models of the task become runs in a way of their own, `IMPORTER` too; see `commands.command.Importer`.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any, NamedTuple

from keras_transformer.core.errors import RequestError


class Task(NamedTuple):
    """A task.

    Args:
        package: its folder.
        help: what it learns, in a few words.
        shared_pipeline: the module of its pipeline, if that is another task's.
    """

    package: str
    help: str
    shared_pipeline: str = ""

    @property
    def pipeline(self) -> str:
        """Returns the name of the module of its pipeline."""
        return self.shared_pipeline or f"{self.package}.pipeline"

    def module(self, name: str) -> ModuleType:
        """Imports a module of its folder."""
        return import_module(f"{self.package}.{name}")

    @property
    def settings(self) -> type[Any]:
        """Returns the class of its settings."""
        settings: type[Any] = self.module("settings").Settings
        return settings

    @property
    def kind(self) -> str:
        """Returns the kind of its model, a key of `model_spec.KINDS`."""
        return str(self.settings.kind)

    @property
    def main_command(self) -> str:
        """Returns the name of the first of its commands."""
        commands: Mapping[str, Any] = self.module("commands").COMMANDS
        return next(iter(commands))

    def signature(self, keys: Container[str]) -> type[Any]:
        """Returns the class of its artefacts' signature, for a run whose configuration has these keys."""
        signatures: Sequence[type[Any]] = self.module("signature").SIGNATURES
        return next((one for one in signatures if one.mark is None or one.mark in keys), signatures[-1])


FOLDER = "keras_transformer.tasks"
TASKS = {
    "translation": Task(f"{FOLDER}.translation", "from parallel text"),
    "language-model": Task(f"{FOLDER}.language_modelling", "from text, or from pairs of a text and its answer"),
    "masked-tokens": Task(
        f"{FOLDER}.masked_tokens", "to fill masked places of text", f"{FOLDER}.classification.pipeline"
    ),
    "classification": Task(f"{FOLDER}.classification", "from lines of a label, a tab and a text"),
    "next-item": Task(f"{FOLDER}.next_item", "what comes next in users' histories"),
    "images": Task(f"{FOLDER}.images", "from a folder of images for each label"),
}
DEFAULT_TASK = next(iter(TASKS))


def task_named(name: object, kind: str, keys: Container[str] = ()) -> str:
    """Returns the task of a model: the one that its folder names, or else one that what the folder holds fits.

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
