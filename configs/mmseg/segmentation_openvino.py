_base_ = './segmentation_onnxruntime.py'
deploy = dict(backend=dict(_delete_=True, type='OpenVINOBackend'))
