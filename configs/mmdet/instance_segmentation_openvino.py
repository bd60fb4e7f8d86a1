_base_ = './instance_segmentation_onnxruntime.py'
deploy = dict(backend=dict(_delete_=True, type='OpenVINOBackend'))
