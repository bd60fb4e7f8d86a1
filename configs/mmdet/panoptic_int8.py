# --cfg-options deploy.precision.calibration=FOLDER, with images like those the model will see
_base_ = './panoptic_onnxruntime.py'
deploy = dict(precision=dict(type='int8', num_images=100))
