"""Making offline datasets with an online agent, and making them again from its actions."""

from uvax.collection.progress import Report
from uvax.collection.recording import Recording, read_recording, record
from uvax.collection.run import PolicyScore, collect, replay, score_policy
from uvax.collection.settings import PRESETS, CollectionSettings, preset_settings

__all__ = [
    "PRESETS",
    "CollectionSettings",
    "PolicyScore",
    "Recording",
    "Report",
    "collect",
    "preset_settings",
    "read_recording",
    "record",
    "replay",
    "score_policy",
]
