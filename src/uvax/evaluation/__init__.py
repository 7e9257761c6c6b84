"""Task rejection, rejection curves, calibration and the statistics to report them with."""

from uvax.evaluation.calibration import Calibration, CalibrationGroup, calibration
from uvax.evaluation.curves import RejectionCurve, rejection_curve
from uvax.evaluation.protocol import PLACES, evaluate, rank_tasks
from uvax.evaluation.statistics import (
    Interval,
    area_under_curve,
    auroc,
    auroc_interval,
    iqm,
    iqm_interval,
    mean_interval,
    paired_difference,
    ratio_interval,
    share_interval,
    spearman,
    spearman_interval,
)
from uvax.evaluation.task_rejection import TaskRejection, final_evaluation, report, task_rejection

__all__ = [
    "PLACES",
    "Calibration",
    "CalibrationGroup",
    "Interval",
    "RejectionCurve",
    "TaskRejection",
    "area_under_curve",
    "auroc",
    "auroc_interval",
    "calibration",
    "evaluate",
    "final_evaluation",
    "iqm",
    "iqm_interval",
    "mean_interval",
    "paired_difference",
    "rank_tasks",
    "ratio_interval",
    "rejection_curve",
    "report",
    "share_interval",
    "spearman",
    "spearman_interval",
    "task_rejection",
]
