_base_ = './onnxruntime.py'
deploy = dict(
    rewriters=dict(
        batched_nms=dict(type='BatchedNMS'),
        multiclass_nms=dict(type='MulticlassNMS'),
        filter_scores_and_topk=dict(type='FilterScoresAndTopk'),
        bbox_post_process=dict(type='BBoxPostProcess'),
        rpn_post_process=dict(type='RPNPostProcess'),
        rpn_preselect=dict(type='RPNPreselect'),
        yolox_predict=dict(type='YOLOXPredict'),
        yolox_post_process=dict(type='YOLOXPostProcess'),
        delta2bbox=dict(type='Delta2BBox'),
        distance2bbox=dict(type='Distance2BBox'),
        scale_boxes=dict(type='ScaleBoxes'),
        detr_pre_transformer=dict(type='DETRPreTransformer'),
        roi_head_predict=dict(type='RoIHeadPredict'),
        bbox_head_predict=dict(type='BBoxHeadPredict'),
        split_of_one=dict(type='SplitOfOne'),
        roi_extractor=dict(type='SingleRoIExtractor'),
        roi_align=dict(type='RoIAlign'),
        carafe=dict(type='Carafe'),
        carafe_add=dict(type='CarafeAdd'),
    )
)
