_base_ = './detection_onnxruntime.py'
deploy = dict(backend=dict(_delete_=True, type='OpenVINOBackend'))
