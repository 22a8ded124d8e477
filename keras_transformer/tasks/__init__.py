"""The tasks that a run can learn, a folder each. Their table is `TASKS`, to which a module of yours may add a task."""

from keras_transformer.core.task_registry import TASKS as TASKS
