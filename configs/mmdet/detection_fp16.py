_base_ = './detection_onnxruntime.py'
deploy = dict(precision=dict(type='fp16'))
