_base_ = '../_base_/onnxruntime.py'
deploy = dict(rewriters=dict(resize=dict(type='Resize'), slide_inference=dict(type='SlideInference')))
