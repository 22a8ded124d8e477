"""Defines the settings of training a tagger."""

from keras_transformer.training.common_settings import DATA, OneLanguageSettings, flag, task_settings


@task_settings("tagging", "encoder", label_smoothing=0.0)
class Settings(OneLanguageSettings):
    """The settings of training a tagger."""

    tag_mark: str = flag(DATA, "/", "what stands between a word and its tag", metavar="MARK")
