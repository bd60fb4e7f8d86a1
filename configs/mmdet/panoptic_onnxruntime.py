_base_ = './instance_segmentation_onnxruntime.py'
deploy = dict(
    rewriters=dict(maskformer_panoptic=dict(type='MaskFormerPanoptic'), heuristic_fusion=dict(type='HeuristicFusion'))
)
