"""mmdeploy_lite: MMDetection and MMSegmentation models as one checked ONNX file.

Importing the package costs nothing: torch, mmengine and the model libraries load with the modules that need them, so
that ``mmdeploy_lite.runtime`` runs where only NumPy, ONNX Runtime and OpenCV are installed.
"""

__version__ = '0.1.0'
