_base_ = './panoptic_onnxruntime.py'
deploy = dict(precision=dict(type='fp16'))
