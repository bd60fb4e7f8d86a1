_base_ = './segmentation_onnxruntime.py'
deploy = dict(precision=dict(type='fp16'))
