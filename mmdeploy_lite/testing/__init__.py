"""Models with weights that make tests mean something, without downloads."""

from .calibrate import Calibration, calibrate

__all__ = ['Calibration', 'calibrate']
