"""Making offline datasets with an online agent."""

from uvax.collection.progress import Report
from uvax.collection.run import PolicyScore, collect, score_policy
from uvax.collection.settings import PRESETS, CollectionSettings, preset_settings

__all__ = ["PRESETS", "CollectionSettings", "PolicyScore", "Report", "collect", "preset_settings", "score_policy"]
