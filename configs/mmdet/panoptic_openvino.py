_base_ = './panoptic_onnxruntime.py'
deploy = dict(backend=dict(_delete_=True, type='OpenVINOBackend'))
