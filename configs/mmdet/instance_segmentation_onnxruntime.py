_base_ = '../_base_/mmdet.py'
deploy = dict(rewriters=dict(fcn_mask_paste=dict(type='FCNMaskPaste')))
