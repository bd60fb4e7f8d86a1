_base_ = './instance_segmentation_onnxruntime.py'
deploy = dict(precision=dict(type='fp16'))
