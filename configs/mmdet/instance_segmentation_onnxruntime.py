_base_ = '../_base_/mmdet.py'
deploy = dict(
    rewriters=dict(
        fcn_mask_paste=dict(type='FCNMaskPaste'),
        scnet_global_context=dict(type='SCNetGlobalContext'),
        points_in_features=dict(type='PointsInFeatures'),
        mask_scoring_forward=dict(type='MaskScoringForward'),
        mask_scoring_predict=dict(type='MaskScoringPredict'),
        mask_iou_predict=dict(type='MaskIoUPredict'),
        dynamic_conv=dict(type='DynamicConv'),
        dynamic_params=dict(type='DynamicParams'),
        rtmdet_ins_post_process=dict(type='RTMDetInsPostProcess'),
        mask_matrix_nms=dict(type='MaskMatrixNMS'),
        solo_boxes=dict(type='SOLOBoxes'),
        yolact_preselect=dict(type='YOLACTPreselect'),
        mask2bbox=dict(type='Mask2BBox'),
        fast_nms=dict(type='FastNMS'),
        aligned_bilinear=dict(type='AlignedBilinear'),
    )
)
