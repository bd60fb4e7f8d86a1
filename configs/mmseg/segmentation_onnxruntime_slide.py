# For models whose test config says mode='slide'. A file of any image size runs the windows in a loop, and takes
# images that are not smaller than one; with `--shape H W`, or `input.shape` here, they are one batch, which is faster.
_base_ = './segmentation_onnxruntime.py'
