"""Tasks: what a kind of model takes and answers."""

from .base import BaseTask, Sample
from .detection import InstanceSegmentation, ObjectDetection
from .infer import answering, infer_task
from .panoptic import PanopticSegmentation
from .pipeline import TestPipeline, find_test_pipeline, fix_shape
from .segmentation import SemanticSegmentation

__all__ = [
    'BaseTask',
    'InstanceSegmentation',
    'ObjectDetection',
    'PanopticSegmentation',
    'Sample',
    'SemanticSegmentation',
    'TestPipeline',
    'answering',
    'find_test_pipeline',
    'fix_shape',
    'infer_task',
]
