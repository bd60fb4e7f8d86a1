_base_ = '../_base_/onnxruntime.py'
deploy = dict(
    rewriters=dict(
        fixed_sizes=dict(type='FixedSizes'),
        postprocess_result=dict(type='PostprocessResult'),
        predict_by_feat=dict(type='PredictByFeat'),
        resize=dict(type='Resize'),
        slide_inference=dict(type='SlideInference'),
        position_embedding=dict(type='PositionEmbedding'),
        upsample=dict(type='Upsample'),
        psa_mask=dict(type='PSAMask'),
        generated_kernels=dict(type='GeneratedKernels'),
        points_of_test=dict(type='PointsOfTest'),
        feature_fusion=dict(type='FeatureFusion'),
        clip_text_encoder=dict(type='CLIPTextEncoder'),
    )
)
