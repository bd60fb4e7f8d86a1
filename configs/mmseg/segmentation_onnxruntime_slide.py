# For models whose test config says mode='slide'. The windows are part of the graph, so the image size is fixed:
# give it with `--shape H W` or here; without it, the first image's size is taken.
_base_ = './segmentation_onnxruntime.py'
